"""``manage.py rlock_run``: a program under a lock."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_rlock.management import COMMAND_ON_LOCKED, Terms, run_locked
from django_rlock.management.output import ShellCommand, seconds, wait_seconds
from django_rlock.settings import DEFAULT_ALIAS

NOT_FOUND = 127
"""The exit status of shells for a program that does not exist."""

_PASSED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_TERMINALS = signal.SIGINT, signal.SIGQUIT


class _Parser(CommandParser):
    """Keeps everything after the first ``--`` as it is; argparse would drop a second one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        dashes = args.index("--") if "--" in args else len(args)
        own, program = list(args[:dashes]), list(args[dashes + 1 :])
        if not program and not {"-h", "--help"}.intersection(own):
            self.error("say what to run after two dashes, as in: rlock_run NAME -- COMMAND")
        namespace = namespace or Namespace()
        namespace.program = program
        return super().parse_known_args(own, namespace)


class Command(ShellCommand):
    help = (
        "Runs a program under a lock: rlock_run NAME -- COMMAND. The program gets the signals that this command gets, "
        "and is ended when the lock is lost. Exit status: the program's (128 plus a signal's number if that ended it); "
        "0 if the lock is taken, or 75 with --on-locked fail; 69 Redis did not respond; 70 the lock was lost; "
        "127 the program does not exist; 2 wrong usage."
    )
    requires_system_checks = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        usage = "%(prog)s NAME [options] -- COMMAND [ARGUMENT ...]"
        parser = super().create_parser(prog_name, subcommand, usage=usage, **kwargs)
        parser.__class__ = _Parser
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the lock's name")
        parser.add_argument(
            "--wait",
            type=wait_seconds,
            default=0.0,
            metavar="SECONDS",
            help="how long to wait for the lock; 0 (default) tries once, 'forever' has no limit",
        )
        parser.add_argument(
            "--on-locked", choices=COMMAND_ON_LOCKED, default="skip", help="if the lock is taken: end silently, or fail"
        )
        parser.add_argument(
            "--at-least",
            type=seconds,
            default=0.0,
            metavar="SECONDS",
            help="keep the lock for at least this long: a host whose clock is late does not run the program again",
        )
        parser.add_argument(
            "--kill-after",
            type=seconds,
            default=10.0,
            metavar="SECONDS",
            help="when the lock is lost, the program gets SIGTERM, and after SECONDS (10) SIGKILL",
        )
        parser.add_argument("--using", default=DEFAULT_ALIAS, metavar="ALIAS", help="RLOCK alias")

    def handle(
        self,
        *,
        name: str,
        program: list[str],
        wait: float | None,
        on_locked: str,
        at_least: float,
        kill_after: float,
        using: str,
        verbosity: int,
        **_: Any,
    ) -> None:
        started = Program(program, kill_after)
        options = {"using": using, "wait_time": wait, "at_least": at_least}
        terms = Terms(name=name, options=options, on_locked=on_locked, waits_by="--wait")
        with started.gets_signals():
            status = run_locked(
                terms,
                lambda _lock: started.run(),
                note=lambda text: verbosity > 1 and self.stderr.write(text),
                on_lost=started.stop,
            )
        if status:
            raise SystemExit(status)


class Program:
    """A command line. Signals also reach the processes that it starts, unless it runs at a terminal.

    ``kill_after`` is how many seconds it has to end by itself once the lock is lost. Raises CommandError if the program
    does not exist.
    """

    def __init__(self, command: Sequence[str], kill_after: float) -> None:
        if shutil.which(command[0]) is None:
            raise CommandError(
                f"Program {command[0]!r} is not on the PATH, or is not executable. Nothing was locked.",
                returncode=NOT_FOUND,
            )
        self._command = command
        self._kill_after = kill_after
        # In its own process group, the program could not read from the terminal.
        self._at_terminal = bool(sys.stdin) and sys.stdin.isatty()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = False
        self._signals: int | None = None
        """A file that becomes readable when a signal has come."""
        self._came_early: list[int] = []
        self._stops = False

    def run(self) -> int:
        """Run the program to its end; returns its exit status, or 128 plus the number of the signal that ended it."""
        process = self._start()
        status = self._wait(process)
        if self._stops:
            self._signal(process, signal.SIGKILL)  # processes that it started and did not end
        return status if status >= 0 else 128 - status

    def stop(self, _lock: object = None) -> None:
        """Stop the program soon; any thread may call this."""
        self._stops = True
        process = self._process
        if process is not None:
            self._signal(process, signal.SIGTERM)
            timer = threading.Timer(self._kill_after, self._signal, [process, signal.SIGKILL])
            timer.daemon = True
            timer.start()

    @contextmanager
    def gets_signals(self) -> Iterator[None]:
        """Pass signals on to the program during the block. A signal before the program's start raises SystemExit."""
        if threading.current_thread() is not threading.main_thread():
            yield  # other threads get no signals
            return
        # nohup makes the program ignore SIGHUP.
        passed_on = [number for number in _PASSED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        handlers: dict[int, Any] = dict.fromkeys(passed_on, self._pass_on)
        with _handled(handlers | {signal.SIGCHLD: _wake_up}), _readable_signals() as self._signals:
            yield

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts = True  # from here on SystemExit could leave an unknown process behind
        group = None if self._at_terminal else 0
        process = self._process = subprocess.Popen([*_tether(), *self._command], process_group=group)  # noqa: S603
        for number in self._came_early:
            self._signal(process, number)
        if self._stops:
            self.stop()  # stop() may have been called before the process existed
        return process

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        if self._signals is None:
            return process.wait()
        # With wait(), a signal that comes just before it sleeps would be handled only at the program's end.
        while (status := process.poll()) is None:
            os.read(self._signals, 4096)
        return status

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if not self._starts:
            raise SystemExit(128 + number)
        if self._process is None:
            self._came_early.append(number)
        elif not (self._at_terminal and number in _FROM_TERMINALS):  # the terminal has sent these to the program too
            self._signal(self._process, number)

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses when all processes of the group have ended
            if self._at_terminal:
                process.send_signal(number)
            else:
                os.killpg(process.pid, number)


def _wake_up(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: without a handler, Python would not write to the wake-up file when a program has ended."""


@contextmanager
def _handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    former: dict[int, Any] = {}
    try:
        for number, handler in handlers.items():
            former[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def _readable_signals() -> Iterator[int]:
    """A file to which Python writes at once for each signal that has a handler."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    former = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(former)
        os.close(readable)
        os.close(writable)


def _tether() -> list[str]:
    """The prefix of the command that makes the program end when this process is killed; only Linux supports that."""
    if sys.platform != "linux" or not sys.executable:
        return []
    return [sys.executable, "-I", "-S", str(Path(__file__).parents[1] / "tether.py"), str(os.getpid())]
