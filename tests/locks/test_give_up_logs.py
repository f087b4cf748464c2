"""The log for the engineer on call: who gave up, in which request, and who holds the lock."""

import logging
import re

import pytest
from pytest_django import Settings

from django_rlock import LockTimeoutError, rlock
from django_rlock.locks.records import Work
from tests.bindings import BlockingBinding

ID = r"[0-9a-f-]{36}:[0-9/:]+"
REQUEST = {"route": "POST /buy/<pk>/", "user": "7"}


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_rlock")


@pytest.mark.parametrize("work", [REQUEST, {"task": "shop.tasks.pack", "task_id": "42"}], ids=["request", "task"])
async def test_the_holder_and_the_work_that_gave_up(
    binding: BlockingBinding, work: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    holder = rlock("stock:42", owner="night shift")
    await binding.acquire(holder)
    lock = rlock("stock:42", wait_time=0)
    with Work(work):
        with pytest.raises(LockTimeoutError) as caught:
            async with binding.inside(lock):
                pass
        assert not await binding.acquire(lock)
    await binding.release(holder)
    about = "POST /buy/<pk>/, user 7" if work is REQUEST else "shop.tasks.pack 42"
    expected = rf"Lock 'stock:42' is held by (.*); {re.escape(about)}, .*{ID} gave up after 0\.\d\d\d s\."
    found = [re.fullmatch(expected, text) for text in caplog.messages if "gave up" in text]
    assert [match and match[1] for match in found] == [caught.value.holder] * 2
    assert "in this process: owner 'night shift'" in str(caught.value)


def test_context_that_reports_may_not_have_is_not_logged(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.RLOCK = {"default": {"RECORD_CONTEXT": False}}
    with rlock("stock:42", owner="another"), Work(REQUEST):
        assert not rlock("stock:42", owner="me").acquire(blocking=False)
    assert re.search(r"; me gave up after", caplog.text)
    assert "/buy/" not in caplog.text


@pytest.mark.parametrize(("reason", "told"), [("", "no reason given"), ("alice: it hangs", "alice: it hangs")])
def test_the_reason_of_a_forced_release_has_no_quotes(reason: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    lock = rlock("stock:43")
    lock.acquire()
    lock.force_release(reason=reason)
    assert f"('rlock:stock:43') was freed by force: {told}" in caplog.messages[-1]
