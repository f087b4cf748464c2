"""The options of a task: what is refused, and when, and which lock they name."""

import uuid
from datetime import date, timedelta

import pytest
from celery import Celery

from django_rlock import KeyTemplateError
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
        names = task._rlock.names(task, args, kwargs)
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


def test_several_templates_name_several_locks(lock_name):
    assert lock_name(report, {"lock_key": ["from:<account_id>", "to:<month>"]}, 7, "may") == "from:7 to:may"


def test_a_function_names_several_locks(lock_name):
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


def test_arguments_that_are_not_json_need_a_key(lock_name):
    with pytest.raises(KeyTemplateError, match="give it a lock_key"):
        lock_name(report, {}, object())


def test_arguments_that_do_not_fit_are_told_as_ever(lock_name):
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
        ({"lock_waittime": 5}, TypeError, "no option 'lock_waittime'. Known options: .*lock_wait_time"),
        ({"on_locked": "ignore"}, ValueError, "on_locked must be one of"),
        ({"lock_kind": "hair"}, ValueError, "lock_kind must be one of"),
        ({"lock_kind": ["fair"]}, ValueError, "lock_kind must be one of"),
        ({"lock_wait_time": -1}, ValueError, "wait_time"),
        ({"lock_lease_time": 0}, ValueError, "lease_time"),
        ({"lock_retry_delay": 0}, ValueError, "lock_retry_delay must be"),
        ({"lock_retry_max_delay": None}, ValueError, "lock_retry_max_delay must be"),
        ({"lock_max_retries": -1}, ValueError, "lock_max_retries must be"),
    ],
)
def test_a_bad_option_is_refused_when_the_task_is_made(app, options, error, text):
    task = locked(app, bind=True, **options)(bound)
    for _ in range(2):  # and never again
        with pytest.raises(error, match=text):
            task.delay(7)


def test_delays_double_up_to_the_longest(app):
    task = locked(app, lock_retry_delay=timedelta(seconds=2), lock_retry_max_delay=9)(report)
    assert [task._rlock.delay(retries) for retries in (0, 1, 2, 3, 5000)] == [2, 4, 8, 9, 9]
