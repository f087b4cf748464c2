"""Calls a function before each opcode of the running thread, and after each call of what is written in C.

After such a call Python looks for signals, and the exception belongs to the call. That matters where a ``with`` begins:
since Python 3.14 it calls ``__enter__`` like any function, and what its ``__exit__`` covers begins only behind that. In
Python 3.11 only opcodes can be watched; there an exception before the next opcode has the same effect.

No garbage is collected meanwhile. Python drops what is raised in a finalizer, so nothing would be interrupted. And if a
collection begins as Python 3.11 makes the frame object for a trace function, and that function raises inside the
collection, then Python frees the function and calls it nevertheless: a crash.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Meet = Callable[[FrameType, bool], object]
"""Gets the frame, and whether it has just called something in C; otherwise it is about to run an opcode. What it raises
is raised there.
"""


if sys.version_info < (3, 12):

    def watch_opcodes(meet: Meet | None) -> None:
        """Call ``meet`` before each opcode that this thread runs from now on; stop for None."""

        def enter(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return trace

        def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            if event == "opcode" and meet is not None:
                meet(frame, False)
            return trace

        if meet is None:
            sys.settrace(None)
            gc.enable()
        else:
            gc.disable()
            sys.settrace(enter)

else:

    def watch_opcodes(meet: Meet | None) -> None:
        """The same. Here settrace() would miss opcodes of functions that have run meanwhile without it."""
        monitoring, tool = sys.monitoring, sys.monitoring.DEBUGGER_ID
        events = monitoring.events
        thread = threading.get_ident()

        def see(_code: CodeType, _offset: int) -> None:
            if threading.get_ident() == thread and meet is not None:
                meet(sys._getframe(1), False)

        def see_return(_code: CodeType, _offset: int, _function: object, _argument: object) -> None:
            if threading.get_ident() == thread and meet is not None:
                meet(sys._getframe(1), True)

        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, __name__)
        monitoring.register_callback(tool, events.INSTRUCTION, see)
        monitoring.register_callback(tool, events.C_RETURN, see_return)
        if meet is None:
            monitoring.set_events(tool, events.NO_EVENTS)
            gc.enable()
        else:
            gc.disable()
            monitoring.set_events(tool, events.INSTRUCTION | events.CALL)  # returns are told only with calls
