"""Texts from Redis, made fit to be looked at."""

from __future__ import annotations


def printable(text: object) -> str:
    """A text that moves no cursor and colours nothing: control characters are written as escapes."""
    plain = str(text)
    return plain if plain.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)
