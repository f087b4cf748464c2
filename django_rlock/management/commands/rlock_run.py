"""``manage.py rlock_run``"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_rlock.management.locked import ON_LOCKED, Program, Terms, run_locked
from django_rlock.management.output import seconds, wait_seconds
from django_rlock.settings import DEFAULT_ALIAS


class _Parser(CommandParser):
    """Keeps everything after the first ``--`` as it is; argparse would drop a second one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        own, program = _split(args)
        if not program and not {"-h", "--help"}.intersection(own):
            self.error("say what to run after two dashes, as in: rlock_run NAME -- COMMAND")
        namespace = namespace or Namespace()
        namespace.program = program
        return super().parse_known_args(own, namespace)


def _split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    dashes = args.index("--") if "--" in args else len(args)
    return list(args[:dashes]), list(args[dashes + 1 :])


class Command(BaseCommand):
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
            help="to wait for the lock; 0 (default) tries once",
        )
        parser.add_argument(
            "--on-locked", choices=ON_LOCKED, default="skip", help="if the lock is taken: end silently, or fail"
        )
        parser.add_argument(
            "--at-least",
            type=seconds,
            default=0.0,
            metavar="SECONDS",
            help="keep the lock at least this long, so that a host whose clock is late does not run it again",
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
        terms = Terms(name=name, using=using, wait_time=wait, on_locked=on_locked, at_least=at_least, waits_by="--wait")
        with started.gets_signals():
            status = run_locked(
                terms,
                lambda _lock: started.run(),
                note=lambda text: verbosity > 1 and self.stderr.write(text),
                on_lost=started.end,
            )
        if status:
            raise SystemExit(status)
