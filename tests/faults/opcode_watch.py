"""Calls a function before each opcode of the running thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Meet = Callable[[FrameType], object]
"""Gets the frame that is about to run an opcode; what it raises is raised there."""


if sys.version_info < (3, 12):

    def watch_opcodes(meet: Meet | None) -> None:
        """Call ``meet`` before each opcode that this thread runs from now on; stop for None."""

        def enter(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return trace

        def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            if event == "opcode" and meet is not None:
                meet(frame)
            return trace

        sys.settrace(None if meet is None else enter)

else:

    def watch_opcodes(meet: Meet | None) -> None:
        """The same. Here settrace() would miss opcodes of functions that have run meanwhile without it."""
        monitoring, tool = sys.monitoring, sys.monitoring.DEBUGGER_ID
        thread = threading.get_ident()

        def see(_code: CodeType, _offset: int) -> None:
            if threading.get_ident() == thread and meet is not None:
                meet(sys._getframe(1))

        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, __name__)
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, see)
        monitoring.set_events(tool, monitoring.events.NO_EVENTS if meet is None else monitoring.events.INSTRUCTION)
