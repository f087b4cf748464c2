"""Objects that key templates read before the lock was held: by then, another owner may have changed their rows.

A lazy ``request.user`` that only the template has read is forgotten, so that the body reads it under the lock. Saving
any other object that the template has read is logged, unless the body has read it again.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import asgiref
import django
from django.db.models import Model
from django.db.models.base import ModelState
from django.http import HttpRequest
from django.utils.functional import LazyObject, empty

from django_rlock._core import foreign
from django_rlock._core.text import printable
from django_rlock._transport.identity import current_owner
from django_rlock._web.keytemplates import definition
from django_rlock.locks.holds import HOLDS
from django_rlock.locks.records import PACKAGE

logger = logging.getLogger("django_rlock.web")

# --- the user of the request ------------------------------------------------------------------------------------------


class UnreadUser:
    """A lazy ``request.user`` that nothing had read before the key template."""

    def __init__(self, request: HttpRequest, user: LazyObject[Any]) -> None:
        self._request, self._user = request, user

    @property
    def is_read(self) -> bool:
        return foreign.unwrapped(self._user) is not empty

    def forget(self) -> None:
        """Let the next access read the user again."""
        foreign.wrap_again(self._user, empty)
        vars(self._request).pop(foreign.READ_USER, None)

    def read_again(self) -> None:
        """Read the user at once: a coroutine's access cannot query the database."""
        self.forget()
        foreign.unwrap(self._user)


def unread_user(request: HttpRequest | None, read: list[Any]) -> UnreadUser | None:
    """The lazy user of a request, if nothing has read it yet. A user that async code has read is added to ``read``."""
    if request is None:
        return None
    known = vars(request)
    read.append(known.get(foreign.AREAD_USER))
    user: Any = known.get("user")
    is_unread = isinstance(user, LazyObject) and foreign.unwrapped(user) is empty and foreign.READ_USER not in known
    return UnreadUser(request, user) if is_unread else None


# --- other objects ----------------------------------------------------------------------------------------------------


class _ReadBefore(ModelState):
    """The state of a model instance that was read before the lock was held.

    Django assigns ``db`` when it reads the row again, and when it writes the row. That makes the state a plain one.
    """

    reader: Callable[..., Any]
    """The decorated function."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "db":
            _forget(self)

    def __reduce__(self) -> Any:
        """Copies and pickles are plain."""
        return ModelState, (), {name: value for name, value in vars(self).items() if name != "reader"}


def read_unprotected(read: Iterable[Any]) -> list[Model]:
    """The model instances among the objects that were read; none if the caller holds a lock already, under which it may
    have read them."""
    if HOLDS.of(current_owner()):
        return []
    found: list[Model] = []
    for each in read:
        value = each
        while isinstance(value, LazyObject):
            value = foreign.unwrapped(value)
        if isinstance(value, Model):
            found.append(value)
    return found


@contextmanager
def watched(instances: Iterable[Model], reader: Callable[..., Any]) -> Iterator[None]:
    """Log the saves of instances that were read for ``reader``, inside the block."""
    states = list(map(foreign.state_of, instances))
    marked = [state for state in states if type(state) is ModelState and not state.adding]
    for state in marked:
        state.__class__ = _ReadBefore
        vars(state)["reader"] = reader
    try:
        yield
    finally:
        for state in marked:
            _forget(state)


def _forget(state: ModelState) -> None:
    state.__class__ = ModelState
    vars(state).pop("reader", None)


# --- the warning ------------------------------------------------------------------------------------------------------

_warned_places: set[str] = set()

_DJANGO = f"{Path(django.__file__).parent}{os.sep}"
_SEARCH_ENDS = PACKAGE, f"{Path(asgiref.__file__).parent}{os.sep}"
"""Where the search for a line of the project's code ends."""


def warn_of_old_values(instance: Model, update_fields: Iterable[str] | None = None, **_: Any) -> None:
    """Log that an instance is saved with values that were read before the lock was held. A receiver of ``pre_save``."""
    state = foreign.state_of(instance)
    # The database may compute all values to save, as with ``F("points") + 1``.
    is_computed = update_fields is not None and all(
        hasattr(getattr(instance, name, None), "resolve_expression") for name in update_fields
    )
    if type(state) is not _ReadBefore or is_computed:
        return
    function = definition(state.reader)
    reader = f"{function.__module__}.{function.__qualname__}"
    place = _saving_place(instance, reader)
    if place in _warned_places:
        return
    _warned_places.add(place)
    logger.warning(
        "%s saves %s with values that were read for the key template of %s, before the lock was held: another owner "
        "may have changed the row since. Call refresh_from_db() first, or read the row inside the lock.",
        printable(place),
        printable(instance._meta.label),  # noqa: SLF001
        printable(reader),
    )


def _saving_place(instance: Model, reader: str) -> str:
    """The line of the project's code that saves the instance; the decorated function if Django itself saves it, or if
    it is saved for a coroutine, which waits in another thread."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
    while frame is not None and not frame.f_code.co_filename.startswith(_SEARCH_ENDS):
        if not frame.f_code.co_filename.startswith(_DJANGO) and frame.f_locals.get("self") is not instance:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return reader
