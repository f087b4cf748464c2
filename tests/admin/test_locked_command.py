"""``LockedCommand``: management commands that many hosts start at the same minute."""

import io
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from django_rlock import LockLostError, LockTimeoutError, rlock
from django_rlock.locks import Duration
from django_rlock.management import LockedCommand
from tests.conftest import OwnServer

USAGE, UNAVAILABLE, LOST, TAKEN = 2, 69, 70, 75


class Nightly(LockedCommand, BaseCommand):
    """A command of this module, whose name its lock has."""

    requires_system_checks: list[str] = []
    name = "command:test_locked_command"

    def handle(self, **_: Any) -> str:
        self.lock.check()
        self.work()
        return "done"

    def work(self) -> None: ...


def run(command: BaseCommand, **options: Any) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    command.stderr = command.stderr.__class__(err)
    call_command(command, stdout=out, **options)
    return out.getvalue(), err.getvalue()


def fails(command: BaseCommand) -> tuple[int, str]:
    with pytest.raises(CommandError) as caught:
        run(command)
    return caught.value.returncode, str(caught.value)


def test_it_runs_under_a_lock_that_has_its_name() -> None:
    class Command(Nightly):
        def work(self) -> None:
            assert rlock(self.name).locked()

    assert run(Command())[0] == "done\n"
    assert not rlock(Nightly.name).locked()


def test_a_taken_lock_is_skipped_without_a_word() -> None:
    with rlock(Nightly.name, owner="another"):
        assert run(Nightly()) == ("", "")
        assert "was not free" in run(Nightly(), verbosity=2)[1]


def test_a_taken_lock_fails_where_told_to() -> None:
    class Command(Nightly):
        lock_name = "nightly"
        on_locked = "fail"

    with rlock("nightly", owner="another"):
        status, message = fails(Command())
    assert (status, "Lock 'nightly' was not free" in message) == (TAKEN, True)
    assert "lock_wait_time" in message


def test_the_name_may_depend_on_the_options() -> None:
    class Command(Nightly):
        def get_lock_name(self, **options: Any) -> str:
            return f"import:{options['verbosity']}"

    with rlock("import:0", owner="another"):
        assert run(Command(), verbosity=0)[0] == ""
        assert run(Command(), verbosity=1)[0] == "done\n"


@pytest.mark.parametrize(("fault", "kept"), [(False, 300), (True, timedelta(minutes=5))])
def test_at_least_keeps_the_lock_also_from_this_thread(fault: bool, kept: Duration) -> None:
    class Command(Nightly):
        at_least = kept

        def work(self) -> None:
            if fault:
                raise CommandError("It went wrong.", returncode=4)

    command = Command()
    if fault:
        assert fails(command) == (4, "It went wrong.")
    else:
        run(command)
    left = rlock(Nightly.name).remaining_lease()
    assert left is not None
    assert 200 < left <= 300
    assert run(Command())[0] == ""


def test_within_its_own_lock_at_least_counts_at_the_outer_release() -> None:
    class Command(Nightly):
        at_least = 300

    with rlock(Nightly.name) as lock:
        run(Command())
        lock.check()
    left = lock.remaining_lease()
    assert left is not None
    assert 200 < left <= 300


def test_a_lost_lock_is_an_error_at_the_end_or_where_the_command_notices_it(redis_client: redis.Redis) -> None:
    class Command(Nightly):
        at_least = 0.0

        def work(self) -> None:
            redis_client.delete(f"rlock:{self.name}")

    class Keeping(Command):
        at_least = 300

    class Noticing(Command):
        def work(self) -> None:
            super().work()
            self.lock.extend(30)

    for command in (Command(), Keeping(), Noticing()):
        status, message = fails(command)
        assert (status, "was lost" in message) == (LOST, True)


@pytest.mark.parametrize("error", [LockTimeoutError("other"), LockLostError("other")])
def test_errors_of_the_command_itself_do_not_change(error: Exception) -> None:
    class Command(Nightly):
        def work(self) -> None:
            raise error

    with pytest.raises(type(error)) as caught:
        run(Command())
    assert caught.value is error
    assert not rlock(Nightly.name).locked()


def test_a_server_that_is_down_runs_nothing(own_server: OwnServer) -> None:
    own_server().kill()
    assert fails(Nightly())[0] == UNAVAILABLE


def test_work_is_done_although_the_server_goes_down_meanwhile(own_server: OwnServer) -> None:
    server = own_server()

    class Command(Nightly):
        def work(self) -> None:
            server.kill()

    assert run(Command())[0] == "done\n"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"on_locked": "retry"}, "on_locked must be 'skip' or 'fail', not 'retry'"),
        ({"at_least": -1}, "at_least must be a number of seconds 0 or more; None adds nothing, as 0; not -1"),
        (
            {"at_least": "60"},
            "seconds as a number or a timedelta, 0 or more; None adds nothing, as 0; not '60'",
        ),
        ({"lock_wait_time": "1"}, "lock_wait_time must be seconds as a number or a timedelta, 0 or more; None waits"),
        ({"at_least": 1e16}, "at_least must be a number of seconds 0 or more"),
        ({"lock_name": ""}, "lock's name must not be empty"),
        ({"lock_name": 7}, "lock's name must be a string"),
        ({"lock_using": "nowhere"}, "RLOCK has no alias 'nowhere'"),
    ],
)
def test_bad_attributes_are_refused(attributes: dict[str, object], expected: str) -> None:
    status, message = fails(type("Command", (Nightly,), attributes)())
    assert (status, expected in message or message) == (USAGE, True)
    assert "test_locked_command" in message
