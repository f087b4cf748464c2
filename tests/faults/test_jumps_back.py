"""A signal's exception may come as a loop jumps back to its beginning. Since Python 3.12, that jump may lie outside of
the ``try`` or ``with`` that the whole loop is in: https://github.com/python/cpython/issues/108214.
"""

import dis
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import django_rlock
from django_rlock import RLock
from django_rlock.locks.holds import HOLDS
from tests.background import settle
from tests.faults.opcode_watch import watch_opcodes

PACKAGE = Path(django_rlock.__file__).parent


def codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def is_jump_back(name: str) -> bool:
    """Whether Python looks for signals at such an opcode."""
    return "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name


def lines_outside(code: CodeType) -> set[int]:
    """The lines whose jump back to the beginning of a loop is outside of a clause that the beginning is inside of."""
    opcodes = {opcode.offset: opcode for opcode in dis.get_instructions(code)}
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def clauses_around(offset: int) -> Iterator[int]:
        for entry in entries:
            if entry.start <= offset < entry.end:
                if opcodes[entry.target].opname == "PUSH_EXC_INFO":  # not what restores a comprehension's variables
                    yield entry.target
                yield from clauses_around(entry.target)

    return {
        line
        for opcode in opcodes.values()
        # What has no line comes after a coroutine's throw().
        if is_jump_back(opcode.opname) and (line := opcode.positions and opcode.positions.lineno)
        if not set(clauses_around(opcode.argval)) <= set(clauses_around(opcode.offset))
    }


def test_every_jump_back_is_covered():
    """Where this fails, put the loop into a function of its own."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {code.co_name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for code in codes_in(compile(path.read_text(encoding="utf-8"), path, "exec"))
        for line in lines_outside(code)
    ]
    assert found == []


def block_with_a_condition(lock, steps):
    with lock:
        while steps:
            steps -= 1


def block_with_a_branch(lock, steps):
    with lock:
        while True:
            steps -= 1
            if not steps:
                break


BLOCKS = block_with_a_condition, block_with_a_branch


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 covers every jump back")
def test_a_jump_back_that_is_not_covered_is_found():
    assert any(map(lines_outside, [block.__code__ for block in BLOCKS]))


class Interruption(BaseException):
    pass


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_left_there_too(block):
    """By the ``__exit__`` that Python drops."""

    def strike_at_jump_back(frame, _has_called):
        if frame.f_code is block.__code__ and is_jump_back(dis.opname[frame.f_code.co_code[frame.f_lasti]]):
            raise Interruption

    with pytest.raises(Interruption):
        try:
            watch_opcodes(strike_at_jump_back)
            block(RLock("stock:42"), 3)
        finally:
            watch_opcodes(None)
    assert HOLDS.snapshot() == []
    settle()
    assert not RLock("stock:42").locked()
