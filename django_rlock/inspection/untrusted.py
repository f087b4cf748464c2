"""Converts untrusted values from Redis, which anyone with write access may have planted, to their expected types."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_TEXT = 300


def plain_text(value: bytes | str) -> str:
    """A reply as text."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def encodable(text: str) -> str:
    """JSON can spell half a surrogate pair, which no page can encode."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def short_text(value: Any) -> str:
    """The beginning of a text; "" for None."""
    return "" if value is None else encodable(str(value)[:MAX_TEXT])


def number_of(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def texts_of(value: Any) -> dict[str, str]:
    """A dictionary of short texts; empty for anything but a dictionary."""
    return {short_text(k): short_text(v) for k, v in value.items()} if isinstance(value, dict) else {}


def list_of(value: Any, at_most: int) -> list[dict[str, Any]]:
    """The dictionaries among the first elements of a list; empty for anything but a list."""
    return [each for each in value[:at_most] if isinstance(each, dict)] if isinstance(value, list) else []


def document_in(text: str, at_most: int) -> dict[str, Any]:
    """The JSON object that a text of at most so many characters holds; empty for anything else."""
    try:
        document = json.loads(text) if len(text) <= at_most else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
