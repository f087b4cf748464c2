"""A signal's exception may come as a loop jumps back to its beginning. Since Python 3.12, that jump may lie outside of
the ``try`` or ``with`` that the whole loop is in: https://github.com/python/cpython/issues/108214.
"""

import ast
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
        # An opcode without a line comes after a coroutine's throw().
        if is_jump_back(opcode.opname) and (line := opcode.positions and opcode.positions.lineno)
        if not set(clauses_around(opcode.argval)) <= set(clauses_around(opcode.offset))
    }


OLD = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 covers every jump back")


@OLD
def test_every_jump_back_is_covered():
    """Where this fails, put the loop into a function of its own."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {code.co_name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for code in codes_in(compile(path.read_text(encoding="utf-8"), path, "exec"))
        for line in lines_outside(code)
    ]
    assert found == []


INLINED = {"all", "any", "tuple"}
"""Functions whose call with a generator expression is a loop of the caller, from Python 3.14 on."""


def is_inlined(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[ast.GeneratorExp()]):
            return name in INLINED
    return False


def inlined_in_blocks(node: ast.AST, is_inside: bool = False) -> Iterator[int]:
    """The lines of such calls in a ``try`` or ``with`` of the same function."""
    if is_inside and is_inlined(node):
        yield node.lineno  # type: ignore[attr-defined]
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for name, parts in ast.iter_fields(node):
        is_body = name == "body" and isinstance(node, ast.Try | ast.With | ast.AsyncWith)
        for part in parts if isinstance(parts, list) else [parts]:
            if isinstance(part, ast.AST):
                yield from inlined_in_blocks(part, is_body or (is_inside and not is_function))


def test_no_call_in_a_block_becomes_a_loop():
    """Older Pythons show no such loop. Write the loop down, in a function of its own, or call map()."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in inlined_in_blocks(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_a_call_that_becomes_a_loop_is_found():
    code = (
        "with lock:\n    all(each for each in found)\n    lambda: all(each for each in found)\nany(each for each in a)"
    )
    assert [*inlined_in_blocks(ast.parse(code))] == [2]


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


@OLD
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
