"""The name of a run's lock, made from the arguments of its message."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from hashlib import blake2b
from types import MethodType
from typing import Any
from uuid import UUID

from celery import Task
from celery.app.task import Context
from kombu import serialization
from kombu.utils.json import dumps

from django_rlock._web.keytemplates import Arguments, KeyTemplate, check_names
from django_rlock._web.values import DIGEST_BYTES
from django_rlock.exceptions import KeyTemplateError
from django_rlock.locks.options import completed
from django_rlock.settings import parsed_entry

Values = dict[str, Any]
"""The arguments of a message by name, with their defaults."""

_UNCHANGED = frozenset({str, int, float, bool, type(None)})
"""The types of values that are the same before and after they were in a message of JSON."""
_encode = json.JSONEncoder(sort_keys=True).encode
BODY = "rlock_body"
"""The attribute of a ``run`` with the lock that holds the ``run`` that it replaces."""
_NO_ID = "id"
"""Replaces the task's id when a name is made only as a check."""


class Naming:
    """Names the locks of the runs of one task class. Raises KeyTemplateError or TypeError for a bad ``lock_key``."""

    def __init__(self, task: type[Task[..., Any]]) -> None:
        self._label = task.name or task.__name__
        self._values = _Values(task)
        key: Any = inspect.getattr_static(task, "lock_key")
        self._function = key if callable(key) else None
        self._templates = [] if key is None or callable(key) else self._parsed(key)
        self._used = frozenset().union(*(template.names for template in self._templates))
        self.sources = [each.source for each in self._templates]
        """The key templates of the names, in their order; empty if a function makes the names."""
        if key is None:
            self.sources.append(f"{self._label}:<all arguments>")
        if self._function is not None and self._values.names is not None:
            self._check_function(self._function)

    def names(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], task_id: str | None = None
    ) -> list[str]:
        """The names of a run's locks; of the running task unless ``task_id`` is given. Raises TypeError when the
        arguments do not fit the body.
        """
        if self._function is None:
            return self._completed(task, self._from_arguments(task, args, kwargs, task_id or task.request.id))
        args, kwargs = self._values.validated(args, kwargs)
        named = self._function(task, *args, **kwargs)
        return self._completed(task, named if isinstance(named, list | tuple | set) else [named])

    def names_of(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """The names of the locks of runs with these arguments; arguments that the key ignores may be left out.

        Raises KeyTemplateError or TypeError, which name the task.
        """
        try:
            if self._function is not None:
                return self.names(task, args, kwargs)
            found = self._values.of_part(self._in_key(args), kwargs, self._used if self._templates else None)
            return self._completed(task, self._from_values(task, found, task.request.id))
        except KeyTemplateError as error:
            raise KeyTemplateError(f"{self._label}: {error.args[0]}", template=error.template) from error.__cause__
        except TypeError as error:
            raise TypeError(f"{self._label}: {error}; pass the arguments as in a call of the task.") from error

    def name(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], task_id: str) -> str:
        """The name of the single lock that a message waits for. Raises TypeError when there are several."""
        names = self.names(task, args, kwargs, task_id)
        if len(names) != 1:
            raise TypeError(f"{self._label}: lock_scope={task.lock_scope!r} takes one name of a lock, not {names!r}.")
        return names[0]

    def check(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise KeyTemplateError, in the process that sends a message, when its key cannot be made."""
        # A key function may need data that exists only where the task runs.
        if self._function is None:
            self._from_arguments(task, args, kwargs, _NO_ID)

    def attributes(self) -> set[str]:
        """The attributes of the task that its templates read."""
        found = (each for template in self._templates for each in template.placeholders)
        return {each.path[0] for each in found if each.root == "self" and each.path}

    @staticmethod
    def _completed(task: Any, names: Iterable[str]) -> list[str]:
        settings = parsed_entry(task.lock_using)
        return [*names] if settings.key_function is None else [*completed(settings, names)]

    def _from_arguments(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], task_id: str | None
    ) -> list[str]:
        found = self._values.of_call(self._in_key(args), kwargs, self._used if self._templates else None)
        return self._from_values(task, found, task_id)

    def _in_key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments as they make the key. Without templates they must be JSON, but Celery calls a
        ``link_error`` with the request that failed, the exception and its traceback."""
        if self._templates or len(args) < 3 or not isinstance(args[0], Context):
            return args
        request, error, _traceback, *rest = args
        return request.id, repr(error), None, *rest

    def _from_values(self, task: Task[..., Any], found: Values, task_id: str | None) -> list[str]:
        if not self._templates:
            return [f"{task.name}:{self._digest(found, task.serializer)}"]
        values = {"task": {"name": task.name, "id": task_id}, "self": task, **found}
        return [template.render(values) for template in self._templates]

    def _digest(self, values: Values, serializer: str) -> str:
        if serializer == "json" and _UNCHANGED.issuperset(map(type, values.values())):
            return _hash(_encode(values))  # most calls are of this kind, and the other way takes ten times as long
        plain = {name: _plain(value) for name, value in values.items()}
        try:
            text = _canonical(plain, serializer)
        except (TypeError, ValueError) as error:
            name = next((name for name, value in plain.items() if not _is_json(value)), "arguments")
            raise KeyTemplateError(
                f"{self._label}: without a lock_key all arguments make the key, and {name!r} is not JSON ({error}); "
                f"give it a lock_key, such as '{self._label}:<id>'.",
                template="",
            ) from error
        return _hash(text)

    def _parsed(self, key: Any) -> list[KeyTemplate]:
        sources = [key] if isinstance(key, str) else key
        if not isinstance(sources, list | tuple) or not sources:
            raise TypeError(
                f"{self._label}: lock_key must be a template, a list of them, a function or None, not {key!r}."
            )
        templates = [KeyTemplate.parse(each) for each in sources]
        names = self._values.names
        for template in templates if names is not None else ():
            error = check_names(template, [*(names or ()), "task", "self"], f"task {self._label}")
            if error is not None:
                raise KeyTemplateError(error, template=template.source)
        return templates

    def _check_function(self, function: Callable[..., Any]) -> None:
        wanted = ["task", *self._values.required]
        if error := misfit(function, len(wanted)):
            raise TypeError(f"{self._label}: lock_key is called as function({', '.join(wanted)}); {error}.")


def body_of(task: type[Task[..., Any]]) -> Any:
    """A task's own ``run``, as defined by its class, also if an annotation of the app wraps the ``run`` with the
    lock."""
    run: Any = inspect.getattr_static(task, "run")
    while hasattr(inner := inspect.unwrap(run, stop=lambda each: hasattr(each, BODY)), BODY):
        run = getattr(inner, BODY)
    return run


def misfit(function: Callable[..., Any], arguments: int) -> str | None:
    """Why a function cannot be called with a number of positional arguments; None if it can, or if that is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*[None] * arguments)
    except TypeError as error:
        return str(error)
    return None


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _canonical(values: Values, serializer: str) -> str:
    """The text of values as a worker gets them: UUIDs become text, and keys are sorted as text.

    Raises TypeError or ValueError for values that have no JSON form.
    """
    return _encode(json.loads(_received(values, serializer), object_hook=_uuid_as_text))


def _received(values: Values, serializer: str) -> str:
    """The JSON of values after they have been in a message."""
    # A sender has a tuple or a date where the worker gets a list or a text. Both must make the same key.
    with suppress(Exception):  # each serializer has its own errors; a plain call may have values that it cannot send
        content_type, encoding, payload = serialization.dumps(values, serializer)
        if content_type == "application/json":
            return str(payload)
        values = serialization.loads(payload, content_type, encoding, force=True)
    return str(dumps(values))


def _uuid_as_text(value: Values) -> Any:
    """Kombu's encoding of a UUID, as the text that a sender may pass for the same UUID."""
    return str(UUID(**value["__value__"])) if value.get("__type__") == "uuid" and len(value) == 2 else value


def _is_json(value: Any) -> bool:
    try:
        dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    """A value in its JSON form; for a pydantic model all fields, defaults included."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


# --- arguments -------------------------------------------------------------------------------------------------------


class _Values:
    """The arguments that a task's body gets from a message: by name, with defaults, and validated if the task was made
    with ``pydantic=True``, so that different spellings of the same value give the same key.
    """

    def __init__(self, task: type[Task[..., Any]]) -> None:
        self._label = task.name or task.__name__
        run = body_of(task)
        function: Any = getattr(run, "__func__", run)
        # Celery puts a wrapper around a body for ``pydantic=True``.
        defined_in = getattr(function, "__globals__", {}).get("__name__")
        wrapper = function if hasattr(function, "__wrapped__") and defined_in == "celery.app.base" else None
        if wrapper is not None:
            function = wrapper.__wrapped__
        # The parameters that a message fills: those of the body, without the task that ``bind=True`` passes first.
        body = function if isinstance(run, staticmethod) else MethodType(function, task)
        self._arguments = Arguments(body)
        self._models = _models(function) if wrapper is not None else {}
        self._context = _context(wrapper) if self._models else {}

    @property
    def names(self) -> list[str] | None:
        """The parameters; None if any name is allowed."""
        return self._arguments.names

    @property
    def required(self) -> list[str]:
        """The parameters without a default."""
        signature = self._arguments.signature
        parameters = () if signature is None else signature.parameters.values()
        named = (each for each in parameters if each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD})
        return [each.name for each in named if each.default is each.empty]

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], used: Collection[str] | None = None) -> Values:
        """The arguments by name; the ``used`` ones (None: all) are validated."""
        return self._with_models(self._arguments.of_call(args, kwargs), used)

    def of_part(self, args: tuple[Any, ...], kwargs: dict[str, Any], used: Collection[str] | None) -> Values:
        """The same for a call in which only the ``used`` arguments must be given."""
        values = self._arguments.of_part(args, kwargs)
        for name in self.required:
            if name not in values and (used is None or name in used):
                raise TypeError(f"missing a required argument: {name!r}")
        return self._with_models(values, used)

    def _with_models(self, values: Values, used: Collection[str] | None) -> Values:
        for name in self._models:
            if name in values and (used is None or name in used):
                values[name] = self._validated(name, values[name])
        return values

    def validated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The validated arguments, in the form in which they were passed."""
        if not self._models or self._arguments.signature is None:
            return args, kwargs
        positions = [*self._arguments.signature.parameters][: len(args)]
        positions += [""] * (len(args) - len(positions))  # into *args
        return (
            tuple([self._validated(name, value) for name, value in zip(positions, args, strict=True)]),
            {name: self._validated(name, value) for name, value in kwargs.items()},
        )

    def _validated(self, name: str, value: Any) -> Any:
        model = self._models.get(name)
        if model is None or value is None:
            return value
        try:
            # Not strictly: strict validation refuses a sender's tuple, which reaches the worker as a list.
            return model.model_validate(value, context=self._context)
        except ValueError as error:
            raise KeyTemplateError(
                f"{self._label}: argument {name!r} is not a valid {model.__name__}: {_faults(error)}.", ""
            ) from None  # pydantic's error shows the value


def _context(wrapper: Any) -> dict[str, Any]:
    """The context that Celery's wrapper passes to validators. Only its closures contain it, or in later versions a
    helper's closures."""
    own = inspect.getclosurevars(wrapper).nonlocals
    helpers = [each for each in own.values() if getattr(each, "__globals__", None) is wrapper.__globals__]
    known = dict(own)
    for each in helpers:
        known |= inspect.getclosurevars(each).nonlocals
    return {**known["context"], "celery_app": known["app"], "celery_task_name": known["task_name"]}


def _faults(error: Any) -> str:
    """The faults that pydantic found: the fields and the kinds of faults, without any values."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return ", ".join(f"{'.'.join(map(str, each['loc'])) or 'it'} ({each['type']})" for each in found)


def _models(body: Callable[..., Any]) -> dict[str, Any]:
    """The pydantic model of each parameter that has one."""
    try:
        hints = typing.get_type_hints(body)
    except (NameError, AttributeError, TypeError):
        hints = {name: each.annotation for name, each in inspect.signature(body).parameters.items()}
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        # Also for ``Model | None``.
        choices = [each for each in (typing.get_args(hint) or (hint,)) if each is not type(None)]
        only = choices[0] if len(choices) == 1 else None
        if name != "return" and isinstance(only, type) and hasattr(only, "model_validate"):
            found[name] = only
    return found
