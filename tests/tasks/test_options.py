"""The options of a task: what is refused, and when, and which lock they name."""

import traceback
import uuid
from datetime import date, timedelta
from typing import Annotated

import pytest
from celery import Celery

from django_rlock import KeyTemplateError
from django_rlock._tasks.task import OPTIONS
from django_rlock.celery import LockedTask


@pytest.fixture
def app():
    with Celery("options", broker="memory://", set_as_current=False) as made:
        yield made


def locked(app, **options):
    return app.task(base=LockedTask, shared=False, **options)


@pytest.fixture
def lock_name(app):
    """The name of the lock of a call of a function, as a task with these options."""

    def name(function, options, *args, **kwargs):
        task = locked(app, name=f"shop.{uuid.uuid4().hex}", **options)(function)
        names = task._rlock.naming.names(task, args, kwargs)
        return " ".join(names).replace(task.name, "shop.task")

    return name


def report(account_id, month=None, *rest, **more):
    pass


def bound(self, account_id):
    pass


def test_a_template_takes_the_arguments(lock_name):
    options = {"lock_key": "report:<int:account_id>:<month?>"}
    assert lock_name(report, options, 7) == "report:7:"
    assert lock_name(report, options, account_id="7", month="may") == "report:7:may"
    assert lock_name(report, {"lock_key": "<extra>"}, 7, extra="x") == "x"


def test_a_template_takes_the_task(lock_name):
    options = {"bind": True, "shard": 3, "lock_key": "<task.name>:<self.shard>:<account_id>"}
    assert lock_name(bound, options, 7) == "shop.task:3:7"


def test_a_function_names_the_lock(lock_name):
    options = {"lock_key": lambda task, account_id: f"{task.name}/{account_id}"}
    assert lock_name(bound, {"bind": True, **options}, 7) == "shop.task/7"


def test_several_names_are_several_locks(lock_name):
    assert lock_name(report, {"lock_key": ["from:<account_id>", "to:<month>"]}, 7, "may") == "from:7 to:may"
    options = {"lock_key": lambda task, account_id: [f"from:{account_id}", "to:all"]}
    assert lock_name(bound, {"bind": True, **options}, 7) == "from:7 to:all"


def test_without_a_key_all_arguments_make_it(lock_name):
    def name(*args, **kwargs):
        return lock_name(report, {}, *args, **kwargs)

    assert name(7).startswith("shop.task:")
    assert name(7) == name(account_id=7) == name(7, None)
    same_whatever_the_order = name(7, a=1, b=date(2026, 1, 2))
    assert same_whatever_the_order == name(7, b=date(2026, 1, 2), a=1)
    assert len({name(7), name(8), name("7"), name(7, "may"), name(7, None, 1), same_whatever_the_order}) == 6


def month_report(account_id, month, *, draft):
    pass


@pytest.mark.parametrize("ask", ["lock_info", "release_lock"])
def test_a_lock_is_asked_for_without_arguments_that_its_key_ignores(app, ask):
    task = locked(app, name="shop.month", lock_key="report:<account_id>")(month_report)
    assert not getattr(task, ask)(7)
    assert not getattr(task, ask)(account_id=7)
    assert not getattr(task, ask)(account_id=7, draft=True)
    function = locked(app, name="shop.by_function", lock_key=lambda task, account_id, *_, **__: f"r:{account_id}")
    assert not getattr(function(month_report), ask)(7)


@pytest.mark.parametrize(
    ("key", "kwargs", "error", "text"),
    [
        ("report:<account_id>", {"month": 5}, TypeError, "shop.month: missing a required argument: 'account_id'"),
        ("report:<account_id>:<month?>", {"account_id": 7}, TypeError, "shop.month: missing .* 'month'"),
        (None, {"account_id": 7}, TypeError, "shop.month: missing .* 'month'"),
        (
            "report:<account_id>",
            {"task_kwargs": {"account_id": 7}},
            TypeError,
            "shop.month: .*'task_kwargs'.* as in a call",
        ),
        ("report:<int:account_id>", {"account_id": "x"}, KeyTemplateError, "shop.month: .*<int:account_id>"),
        (lambda task, account_id, month, draft: "r", {"account_id": 7}, TypeError, "shop.month: .*month"),
    ],
)
def test_an_error_names_the_task_whose_lock_is_asked_for(app, key, kwargs, error, text):
    task = locked(app, name="shop.month", lock_key=key)(month_report)
    for ask in task.lock_info, task.release_lock:
        with pytest.raises(error, match=text):
            ask(**kwargs)


def test_arguments_that_are_not_json_need_a_key(lock_name):
    with pytest.raises(KeyTemplateError, match="give it a lock_key"):
        lock_name(report, {}, object())


def test_arguments_that_do_not_fit_raise_as_without_a_lock(lock_name):
    with pytest.raises(TypeError, match="account_id"):
        lock_name(bound, {"bind": True})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"lock_key": "report:<acount_id>"}, KeyTemplateError, "did you mean 'report:<account_id>'"),
        ({"lock_key": "report:<account_id"}, KeyTemplateError, "not closed"),
        ({"lock_key": 7}, TypeError, "lock_key must be a template, a list of them, a function or None"),
        ({"lock_key": []}, TypeError, "lock_key must be"),
        ({"lock_key": ["report:<account_id>", "month:<month>"]}, KeyTemplateError, "month"),
        ({"lock_waittime": 5}, TypeError, "unknown option 'lock_waittime'. Did you mean 'lock_wait_time'"),
        ({"on_locked": "ignore"}, ValueError, "on_locked must be one of"),
        ({"on_skipped": "stop"}, ValueError, "on_skipped must be"),
        ({"lock_kind": "hair"}, ValueError, "lock_kind must be one of"),
        ({"lock_kind": "read", "lock_at_least": 1}, ValueError, "lock_at_least: A read-write lock cannot be kept"),
        ({"lock_kind": ["fair"]}, ValueError, "lock_kind must be one of"),
        ({"lock_lease_time": 0}, ValueError, r"options\.bound: lock_lease_time must "),
        ({"lock_retry_delay": 0}, ValueError, "lock_retry_delay must be"),
        ({"lock_retry_max_delay": None}, ValueError, "lock_retry_max_delay must be"),
        ({"lock_max_retries": -1}, ValueError, "lock_max_retries must be"),
        ({"lock_wait_time": -1}, ValueError, r"options\.bound: lock_wait_time must "),
        ({"lock_lease_time": "1"}, TypeError, r"options\.bound: lock_lease_time must "),
        ({"done_marker_time": -1}, ValueError, r"options\.bound: done_marker_time must "),
        *(
            ({each: 1e16}, ValueError, rf"options\.bound: {each} must be a number of seconds")
            for each in sorted(OPTIONS)
            if each.endswith(("_time", "_delay", "_least"))
        ),
        ({"lock_scope": "queue", "lock_queue_time": None}, ValueError, "lock_queue_time must be"),
        ({"lock_scope": "queue", "lock_queue_time": 0}, ValueError, "lock_queue_time"),
        ({"lock_scope": "que"}, ValueError, "lock_scope must be one of"),
        ({"lock_scope": "queue", "on_queued": "skip"}, ValueError, "on_queued must be one of"),
        ({"on_queued": "again"}, ValueError, "needs lock_scope='queue'"),
        ({"lock_scope": "until_start", "on_queued": "again"}, ValueError, "is for lock_scope='queue'"),
        ({"lock_scope": "queue", "lock_key": ["a", "b"]}, TypeError, "takes one lock_key"),
        ({"on_queue": "again"}, TypeError, "Did you mean 'on_queued'"),
        ({"lock_permits": 0}, ValueError, "bound: lock_permits: permits must be a whole number from 1"),
        ({"lock_permits": 2, "lock_kind": "fair"}, ValueError, "lock_permits: permits= makes a lock of its own kind"),
        ({"lock_permits": 2, "lock_scope": "queue"}, ValueError, "lock_permits needs lock_scope='run'"),
        ({"lock_at_least": 10, "lock_scope": "until_start"}, ValueError, "no effect with lock_scope='until_start'"),
        ({"lock_key": lambda: "report"}, TypeError, r"called as function\(task, account_id\)"),
        ({"on_locked": lambda error: None}, TypeError, r"called as function\(task, error\)"),
        ({"lockkey": "report"}, TypeError, "Did you mean 'lock_key'"),
        ({"lock_keys": lambda task, account_id: "report"}, TypeError, "Did you mean 'lock_key'"),
        ({"onlocked": "wait"}, TypeError, "Did you mean 'on_locked'"),
        ({"done_marker": 5}, TypeError, "Known options"),
        ({"task_acks_late": True}, TypeError, "attribute of a task is 'acks_late'"),
        ({"task_reject_on_worker_lost": True}, TypeError, "attribute of a task is 'reject_on_worker_lost'"),
        ({"task_default_rate_limit": "1/s"}, TypeError, "attribute of a task is 'rate_limit'"),
        ({"task_default_queue": "slow"}, TypeError, "set it in the configuration"),
        ({"once": {"graceful": True}}, TypeError, "lock_scope='queue', and on_queued='return' for 'graceful'"),
        (
            {"once": {"keys": ["a", "b"], "timeout": 60, "unlock_before_run": True}},
            TypeError,
            "here: lock_scope='until_start', on_queued='raise', lock_key='name:<a>:<b>', lock_queue_time=60",
        ),
        ({"once": {"keys": []}}, TypeError, "here: lock_scope='queue', on_queued='raise', lock_key='name'"),
        ({"unlock_before_run": True}, TypeError, "lock_scope='until_start'"),
        ({"default_timeout": 60}, TypeError, "lock_queue_time"),
        ({"singleton_key_prefix": "x"}, TypeError, "KEY_PREFIX in RLOCK"),
        ({"unique_on": ["a", "b"]}, TypeError, "here: lock_key='name:<a>:<b>'"),
        ({"unique_on": ["account_id"]}, TypeError, "lock_scope='queue', lock_key='name:<argument>"),
        ({"raise_on_duplicate": True}, TypeError, "lock_scope='queue', on_queued='raise'"),
        ({"singleton_raise_on_duplicate": True}, TypeError, "lock_scope='queue', on_queued='raise'"),
        ({"lock_expiry": 60}, TypeError, "lock_queue_time"),
        ({"heimdall": {}}, TypeError, "lock_scope='queue'"),
        ({"lock": "report:<account_id>"}, TypeError, "the option is called 'lock_key'"),
    ],
)
def test_a_bad_option_is_refused_when_the_task_is_made(app, options, error, text):
    task = locked(app, bind=True, name="options.bound", **options)(bound)
    for _ in range(2):  # and never again
        with pytest.raises(error, match=text):
            task.delay(7)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ({"lock_waittime": 5}, "unknown option 'lock_waittime'. Did you mean 'lock_wait_time'"),
        ({"once": {"graceful": True}}, "lock_scope='queue'"),
        ({"lock": "report"}, "'lock_key'"),
    ],
)
def test_a_bad_option_in_the_annotations_is_refused_as_well(app, annotation, text):
    app.conf.task_annotations = {"options.annotated": annotation}
    with pytest.raises(TypeError, match=text):
        locked(app, name="options.annotated", lock_key="report:<account_id>")(report).delay(7)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"once": {"graceful": True}}, "lock_scope='queue', and on_queued='return' for 'graceful'"),
        ({"lock_wait_time": 5}, "set 'lock_wait_time' on the task"),
        ({"on_locked": "wait"}, "set 'on_locked' on the task"),
        ({"wait_time": 5}, "set 'lock_wait_time' on the task"),
        ({"using": "other"}, "set 'lock_using' on the task"),
        ({"lock": "report:7"}, "set 'lock_key' on the task"),
    ],
)
def test_an_option_of_the_task_is_refused_in_a_call(app, options, text):
    task = locked(app, lock_key="report:<account_id>")(report)
    with pytest.raises(TypeError, match=text):
        task.apply_async((7,), **options)


def test_delays_double_up_to_the_longest(app):
    task = locked(app, lock_retry_delay=timedelta(seconds=2), lock_retry_max_delay=9)(report)
    assert [task._rlock.delay(retries) for retries in (0, 1, 2, 3, 5000)] == [2, 4, 8, 9, 9]


def test_attributes_of_the_tasks_own_are_let_alone(app):
    task = locked(app, bind=True, task_force="north", clock_key=1, unlock=True, lock_key="<self.task_force>")(bound)
    assert task.task_force == "north"


def test_a_coroutine_is_refused_when_the_task_is_made(app):
    async def body(account_id):
        pass

    task = locked(app, lock_key="report:<account_id>")(body)
    with pytest.raises(TypeError, match="async_to_sync"):
        task.delay(7)


@pytest.mark.parametrize(
    ("options", "args", "text"),
    [
        ({}, (object(),), "'account_id' is not JSON"),
        ({"lock_key": "report:<int:account_id>"}, ("seven",), "<int:account_id>"),
        ({"lock_key": "report:<account_id.pk>"}, (7,), "<account_id.pk>"),
    ],
)
def test_a_key_that_cannot_be_made_fails_where_the_message_is_sent(app, options, args, text):
    task = locked(app, **options)(report)
    with pytest.raises(KeyTemplateError, match=text):
        task.apply_async(args)


def test_a_key_with_the_tasks_id_can_be_made_when_the_message_is_sent(app):
    assert locked(app, lock_key="<task.id>")(report).apply_async((7,)).id


def test_validated_arguments_make_the_key(app, lock_name):
    pydantic = pytest.importorskip("pydantic")
    order_model = pydantic.create_model("Order", number=(int, ...), express=(bool, False))

    def ship(order, note=None):
        pass

    ship.__annotations__ = {"order": order_model, "note": order_model | None}

    def name(options, *args, **kwargs):
        return lock_name(ship, {"pydantic": True, **options}, *args, **kwargs)

    for options in ({}, {"lock_key": "<order.number>:<order.express>"}):
        one = name(options, {"number": 7})
        assert one == name(options, {"number": "07"}) == name(options, order={"number": 7, "express": False})
        assert one != name(options, {"number": 8})
    assert name({"lock_key": lambda task, order: f"order:{order.number}"}, {"number": "07"}) == "order:7"
    assert name({}, {"number": 7}, {"number": 1}) == name({}, {"number": 7}, note={"number": "1"})
    task, bad = locked(app, pydantic=True)(ship), "a secret"
    with pytest.raises(KeyTemplateError, match=r"'order' is not a valid Order: number \(int_parsing\)") as raised:
        task.delay({"number": bad})
    assert "secret" not in "".join(traceback.format_exception(raised.value))


def test_validators_get_the_context_of_the_task(app, lock_name):
    pydantic = pytest.importorskip("pydantic")

    def prefixed(value, info):
        return f"{info.context['prefix']}-{info.context['celery_task_name']}-{value}"

    checked = Annotated[str, pydantic.AfterValidator(prefixed)]
    order_model = pydantic.create_model("Order", number=(checked, ...))

    def ship(order):
        pass

    ship.__annotations__ = {"order": order_model}
    options = {"pydantic": True, "pydantic_context": {"prefix": "shop"}, "lock_key": "<order.number>"}
    assert lock_name(ship, options, {"number": "7"}) == "shop-shop.task-7"
    assert locked(app, **options)(ship).delay({"number": "7"}).id
