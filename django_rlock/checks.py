"""System checks find mistakes in the settings before the first request. No check uses the network.

Each message has a stable id, and a hint with a link to the documentation.
"""

from __future__ import annotations

import inspect
import logging
import os
import shlex
from argparse import ArgumentError, ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string

from django_rlock._core.errors import FILE_ADVICE
from django_rlock._core.foreign import admins_of
from django_rlock._core.redis_py import UNSET_TIMEOUT, databases, is_djangos, unreadable_file
from django_rlock._transport.servers import NoPlaceError, background_limit, check_entry, needs_no_cache, source
from django_rlock._web.calls import Options
from django_rlock._web.decorator import DECORATED_AT, OPERATIONS, TEMPLATES, Decorator, without_a_template
from django_rlock._web.http import import_views
from django_rlock._web.keytemplates import Arguments, check_converters, check_names
from django_rlock.locks.places import first_alias
from django_rlock.settings import DEFAULT_ALIAS, AliasSettings, get_aliases, get_settings, server_aliases, unknown_alias

logger = logging.getLogger("django_rlock.checks")

PLACE = "docs/checks.md"
"""The page of the documentation that describes each id."""

_GREENLETS = "gevent", "eventlet"
_gunicorn = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
_gunicorn.add_argument("--threads", type=int, default=1)
_gunicorn.add_argument("-k", "--worker-class", default="")
_gunicorn.add_argument("--worker-connections", type=int, default=1000)


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check RLOCK.

    E001: the setting, one of its aliases or its cache is wrong; the text is the exception's. W001: an even number of
    NODES. W002: fewer than three NODES. W003: fewer connections than threads, as far as the environment and the
    settings show. W007: views wait longer than the lock of a dead holder lasts. W008: RLOCK has no ``default``. W010:
    RLOCK names no server for locks, and the default cache has no Redis. W013: two aliases share their locks, but differ
    in an option of the queue.
    """
    usable, refusals = _examined()
    errors: list[CheckMessage] = [
        _message("W010", str(error), "With --deploy, this is an error.")
        if isinstance(error, NoPlaceError)
        else _message("E001", str(error), "Correct RLOCK or CACHES.")
        for error in refusals
    ]
    return [*errors, *([] if errors else _no_default()), *_breaches(usable, for_deployments=False)]


def check_deployment(**_: Any) -> list[CheckMessage]:
    """Find settings that work in development, but fail under load.

    W004: the locks' database is also used by a cache, which may be cleared. W005: a reply may take too long. W006:
    uWSGI runs no threads. W009: locks are on a server of this machine. W011: other users may replace the folder of that
    server. W014: a file of TLS cannot be read. E003: locks are in each process's memory. E004: W010, as an error.
    """
    usable, refusals = _examined()
    unplaced = [error for error in refusals if isinstance(error, NoPlaceError)]
    errors = [_message("E004", str(error), "Set CACHE, NODES or STORE in RLOCK.") for error in unplaced]
    return [*errors, *_breaches(usable, for_deployments=True), *_no_threads()]


def _message(number: str, text: str, advice: str) -> CheckMessage:
    make = Error if number.startswith("E") else CheckWarning
    hint = f"{advice} See the documentation of django-rlock: {PLACE}#django_rlock{number.lower()}"
    return make(text, hint=hint, id=f"django_rlock.{number}")


def _examined() -> tuple[list[str], list[ImproperlyConfigured]]:
    """The aliases that are usable, and the errors of the others, or of RLOCK as a whole; makes no connection."""
    usable: list[str] = []
    refusals: list[ImproperlyConfigured] = []
    try:
        aliases = get_aliases()
    except ImproperlyConfigured as error:
        return [], [error]
    for alias in aliases:
        try:
            for server in server_aliases(alias):
                check_entry(server)
            usable.append(alias)
        except ImproperlyConfigured as error:
            refusals.append(error)
    return usable, refusals


def _no_default() -> Iterator[CheckMessage]:
    named = getattr(settings, "RLOCK", None)
    if named and DEFAULT_ALIAS not in named:
        text = f"RLOCK has no {DEFAULT_ALIAS!r}: code that names no alias uses CACHES['default'], with default options."
        advice = f"If this is intended, add {DEFAULT_ALIAS!r}: {{}} to RLOCK; otherwise rename the intended alias."
        yield _message("W008", text, advice)


# --- rules for one alias ----------------------------------------------------------------------------------------------

Told = Iterator[tuple[str, str]]
"""Breaches of a rule, each with advice."""

_SHARED_BY_LOCKS = "KIND", "CLAIM_TIME", "WAITER_ALIVE_TIME"
"""The options that describe a lock and its queue; the others describe one use of the lock."""


def _different_twins(options: AliasSettings) -> Told:
    first = get_settings(first_alias(options.alias))
    pairs = {name: [getattr(each, name.lower()) for each in (first, options)] for name in _SHARED_BY_LOCKS}
    found = {name: values for name, values in pairs.items() if values[0] != values[1]}
    if found:
        differences = "; ".join(f"{name} is {one!r} and {other!r}" for name, (one, other) in found.items())
        text = (
            f"{_entry(first)} and {_entry(options)} share their locks: they have the same server, database and prefix. "
            f"But {differences}."
        )
        yield text, "Set the same values, or another KEY_PREFIX for one of them."


def _even_nodes(options: AliasSettings) -> Told:
    nodes = len(options.nodes or ())
    if nodes and nodes % 2 == 0:
        text = f"{_entry(options)}['NODES'] lists {nodes} nodes; {nodes - 1} would tolerate as many failures."
        yield text, "Use an odd number of nodes."


def _few_nodes(options: AliasSettings) -> Told:
    nodes = len(options.nodes or ())
    if 0 < nodes < 3:
        text = f"{_entry(options)}['NODES'] lists {nodes} nodes: when one node fails, no lock can be taken."
        yield text, "Use three or five independent nodes."


def _few_connections(options: AliasSettings) -> Told:
    option, most = f"{_entry(options)}['MAX_CONNECTIONS']", options.max_connections
    for origin, threads in _configured_threads():
        if threads > most:
            text = (
                f"{option} is {most}, but with {origin} a process runs {threads} threads or greenlets: when more than "
                f"{most} of them use locks at once, the others wait for a connection."
            )
            yield text, f"Set {option} to {threads}, or run fewer threads in each process."


def _long_waits(options: AliasSettings) -> Told:
    option, wait, lease = f"{_entry(options)}['VIEW_WAIT_TIME']", options.view_wait_time, options.watchdog_timeout
    if wait is None or wait > lease:
        value = "None" if wait is None else f"{wait:g} s, longer than WATCHDOG_TIMEOUT ({lease:g} s)"
        text = (
            f"{option} is {value}: requests wait for a holder that is alive and working. Clients and proxies give up "
            f"earlier, and each waiting request occupies its thread."
        )
        yield text, f"Set {option} to a few seconds, and return 423 after them."


def _separate_locks(options: AliasSettings) -> Told:
    if options.store not in ("cache", "embedded"):
        text = (
            f"{_entry(options)}['STORE'] is {options.store!r}: each process has separate locks, so two workers can "
            f"hold the same lock at once."
        )
        yield text, f"{_move(options)}, or STORE to 'embedded' if the site has one machine."


def _one_machine(options: AliasSettings) -> Told:
    if options.store == "embedded":
        text = (
            f"{_entry(options)}['STORE'] is 'embedded', for development, demos and sites on one machine: processes on "
            f"other machines, of other users and in other containers do not see these locks."
        )
        yield text, f"{_move(options)}, or silence this if all processes of the site run on this machine."


def _public_folder(options: AliasSettings) -> Told:
    if options.store != "embedded":
        return
    from django_rlock._embedded import public_parent  # of the extra "embedded"

    if parent := public_parent(Path(str(options.folder))):
        text = (
            f"{_entry(options)} keeps its server in {options.folder!r}, below {str(parent)!r}, where all users may "
            f"write: if a cleaner of old files removes the folder, another user may create it and run a server there."
        )
        yield text, f"Name a folder in {_entry(options)}['FOLDER'] that only this user can create."


def _shared_database(options: AliasSettings) -> Told:
    for use in _other_uses(options.cache) if _has_cache(options) else ():
        text = (
            f"{_entry(options)} keeps locks in CACHES[{options.cache!r}], {use}: cache.clear() there frees all locks, "
            f"even held ones."
        )
        yield (
            text,
            f"Give locks a separate database: add an entry to CACHES, and name it in {_entry(options)}['CACHE'].",
        )


def _slow_replies(options: AliasSettings) -> Told:
    if not _has_cache(options):
        return
    limit, most = source(options.alias).options.get("socket_timeout"), background_limit(options.alias)
    if (limit or UNSET_TIMEOUT) > most:
        cache = f"CACHES[{options.cache!r}]"
        option = "socket_timeout" if is_djangos(settings.CACHES[options.cache]) else "SOCKET_TIMEOUT"
        problem = f"sets no {option}" if limit is None else f"waits too long: {option} is {limit:g} s"
        text = (
            f"{cache}, where {_entry(options)} keeps locks, {problem}. A server that hangs blocks a caller for "
            f"{limit or UNSET_TIMEOUT:g} s, but a lease of {options.watchdog_timeout:g} s allows for {most:g} s only."
        )
        yield text, f"Set {cache}['OPTIONS'] = {{{option!r}: {most:g}, …}}, or less."


def _unreadable_files(options: AliasSettings) -> Told:
    errors = (unreadable_file(source(server).options) for server in server_aliases(options.alias))
    for error in filter(None, errors):
        text = f"{_entry(options)} connects by TLS, but {error.filename!r} cannot be read: {error.strerror}."
        yield text, FILE_ADVICE


RULES: tuple[tuple[str, bool, Callable[[AliasSettings], Told]], ...] = (
    ("W013", False, _different_twins),
    ("W001", False, _even_nodes),
    ("W002", False, _few_nodes),
    ("W003", False, _few_connections),
    ("W007", False, _long_waits),
    ("E003", True, _separate_locks),
    ("W009", True, _one_machine),
    ("W011", True, _public_folder),
    ("W004", True, _shared_database),
    ("W005", True, _slow_replies),
    ("W014", True, _unreadable_files),
)
"""All rules for one alias: the id, whether it matters for deployments only, and what finds breaches. The system checks
and rlock_doctor show the same text and advice for each breach."""


def _breaches(aliases: Iterable[str], for_deployments: bool) -> Iterator[CheckMessage]:
    for alias in aliases:
        for number, is_for_deployments, find in RULES:
            if is_for_deployments == for_deployments:
                yield from (_message(number, text, advice) for text, advice in find(get_settings(alias)))


def _entry(options: AliasSettings) -> str:
    return f"RLOCK[{options.alias!r}]"


def _move(options: AliasSettings) -> str:
    return f"Set {_entry(options)}['CACHE'] to an entry of CACHES with a Redis"


def _has_cache(options: AliasSettings) -> bool:
    """Whether the locks share a server with a cache. Nodes have their own time limits, and usually no other data."""
    return options.nodes is None and not needs_no_cache(options.alias)


def _other_uses(cache: str) -> Iterator[str]:
    """Other uses of a cache's database, as far as the settings show."""
    if cache == "default":
        yield "the project's default cache"
    if cache == settings.SESSION_CACHE_ALIAS and "cache" in settings.SESSION_ENGINE.rpartition(".")[2]:
        yield "which SESSION_CACHE_ALIAS names as well"
    own = databases(settings.CACHES[cache])
    entries: Mapping[str, Any] = settings.CACHES
    for other, entry in entries.items():
        if other != cache and isinstance(entry, Mapping) and own.intersection(databases(entry)):
            yield f"the database of CACHES[{other!r}] as well"


def _no_threads() -> Iterator[CheckMessage]:
    options = _uwsgi_options()
    enabled = options.get("enable-threads", False)
    enabled = enabled.decode() if isinstance(enabled, bytes) else str(enabled)
    if options and "threads" not in options and enabled.lower() not in {"1", "true", "yes", "on"}:
        text = (
            "uWSGI runs no threads, so nothing renews locks: each is lost when its lease ends, even while it is held."
        )
        yield _message("W006", text, "Set enable-threads = true for uWSGI, or threads.")


def warn_inside_uwsgi() -> None:
    """Log W006 in a process of uWSGI, where no checks run."""
    if _own_uwsgi() is not None:
        for message in _no_threads():
            logger.warning("%s %s", message.msg, message.hint)


def _own_uwsgi() -> Any:
    """The module that uWSGI provides in its processes; None in other processes."""
    try:
        return import_module("uwsgi")
    except ImportError:
        return None


def _uwsgi_options() -> dict[str, Any]:
    """The options of the uWSGI that runs this process, or the options in the environment; empty without uWSGI."""
    uwsgi = _own_uwsgi()
    if uwsgi is not None:
        return dict(uwsgi.opt)
    prefix = "UWSGI_"
    found = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix).lower().replace("_", "-"): value for name, value in found.items()}


def _configured_threads() -> Iterator[tuple[str, int]]:
    """The settings for the number of threads or greenlets of a process, with their values."""
    yield "GUNICORN_CMD_ARGS", _gunicorn_threads(os.environ.get("GUNICORN_CMD_ARGS", ""))
    yield "UWSGI_THREADS", _number(os.environ.get("UWSGI_THREADS", ""))
    concurrency = getattr(settings, "CELERY_WORKER_CONCURRENCY", None)
    if getattr(settings, "CELERY_WORKER_POOL", None) in ("threads", *_GREENLETS) and isinstance(concurrency, int):
        yield "CELERY_WORKER_CONCURRENCY", concurrency


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 1


def _gunicorn_threads(arguments: str) -> int:
    try:
        options, _others = _gunicorn.parse_known_args(shlex.split(arguments))
    except (ArgumentError, ValueError):  # gunicorn itself reports that
        return 1
    has_greenlets = any(name in options.worker_class for name in _GREENLETS)
    return int(options.worker_connections if has_greenlets else options.threads)


# --- views ------------------------------------------------------------------------------------------------------------

TEMPLATES_HINT = "See key templates in the documentation of django-rlock: docs/key-templates.md"


def check_routes(**_: Any) -> list[CheckMessage]:
    """E010: a view's key template has a name that its route does not provide, or an unknown converter."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    # A view with several operations has several entries in the URLconf.
    problems = dict.fromkeys(_problems(get_resolver(), "", ()))
    return [Error(problem, hint=TEMPLATES_HINT, id="django_rlock.E010") for problem in problems]


def check_aliases(**_options: Any) -> list[CheckMessage]:
    """E011: a decorator names an alias that RLOCK does not have. Only imported modules are checked, which include the
    modules that the URLconf imports."""
    import_views()
    try:
        known = get_aliases()
    except ImproperlyConfigured:
        return []  # another check reports it, once
    lines = sorted((*line, options.using) for options, line in DECORATED_AT.items() if options.using not in known)
    hint = f"See the documentation of django-rlock: {PLACE}#django_rlocke011"
    texts = [f"{module}, line {line}: @distributed_lock: {unknown_alias(using)}" for module, line, using in lines]
    return [Error(text, hint=hint, id="django_rlock.E011") for text in texts]


def check_hooks(**_: Any) -> list[CheckMessage]:
    """W012: a method of a ModelAdmin or an authentication backend is locked, and gets a request, but is not a view."""
    import_views()
    return [
        _message(
            "W012",
            f"{hook} is not a view: if its lock is taken or lost, it raises the error, and the user sees status 500 "
            f"unless LockMiddleware is installed.",
            "Lock a view instead, such as change_view() of the ModelAdmin; or install LockMiddleware, and silence "
            "this check.",
        )
        for hook in dict.fromkeys([*_hooks_of_admins(), *_hooks_of_backends()])
    ]


def _hooks_of_admins() -> Iterator[str]:
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin import options, sites

    for site in sites.all_sites:
        for admin in admins_of(site).values():
            for cls in (type(admin), *admin.inlines):
                for name, hook in _locked_methods(cls):
                    # Methods that Django's classes do not have are views and actions of the project.
                    if not name.endswith("_view") and any(
                        hasattr(each, name) for each in (options.ModelAdmin, options.InlineModelAdmin)
                    ):
                        yield hook


def _hooks_of_backends() -> Iterator[str]:
    if apps.is_installed("django.contrib.auth"):
        for path in settings.AUTHENTICATION_BACKENDS:
            with suppress(ImportError):  # the first login raises it
                yield from (hook for _name, hook in _locked_methods(import_string(path)))


def _locked_methods(cls: type) -> Iterator[tuple[str, str]]:
    """The locked methods of a class that get a request: their names, and where they are."""
    for name in dir(cls):
        owner = next((each for each in cls.__mro__ if name in vars(each)), cls)
        method = vars(owner).get(name)
        if hasattr(method, TEMPLATES) and "request" in _parameters(method):
            yield name, f"{owner.__module__}.{owner.__qualname__}.{name}"


def _problems(resolver: URLResolver, prefix: str, outer: tuple[str, ...]) -> Iterator[str]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        names = (*outer, *entry.pattern.regex.groupindex)
        if isinstance(entry, URLResolver):
            yield from _problems(entry, route, (*names, *entry.default_kwargs))
        else:
            yield from _view_problems(entry, route, (*names, *entry.default_args))


def _view_problems(entry: URLPattern, route: str, names: tuple[str, ...]) -> Iterator[str]:
    for function, view_name, own_names in _functions(entry.callback, _view_name(entry)):
        if (without := _without_template(function)) is not None:
            yield f"{view_name}: {without_a_template(without)}"
            continue
        available = dict.fromkeys([*names, *own_names, "request"])
        for template in getattr(function, TEMPLATES, ()):
            problem = check_converters(template) or check_names(template, available, f"route `{route}`")
            if problem is not None:
                yield f"{view_name}: {problem}"


def _without_template(function: Any) -> Any:
    """The functions above which a ``@distributed_lock`` without a key template was put, at once or over others."""
    inner = inspect.unwrap(function, stop=lambda each: isinstance(each, Decorator))
    if isinstance(inner, Decorator):
        return inner.options.templates[0]
    # method_decorator() decorates its own function, and gives its attributes to the method; as_view() gives those
    # of dispatch() to the view.
    if not isinstance(getattr(function, "options", None), Options):
        return None
    return function.view_class.dispatch if hasattr(function, "view_class") else function


def _view_name(entry: URLPattern) -> str:
    """The view's module and name. Django reads the name of every view that is not a class."""
    view = entry.callback
    if isinstance(view, Decorator):
        named_by = view.options.templates[0]
        return f"{named_by.__module__}.{getattr(named_by, '__qualname__', named_by)}"
    return entry.lookup_str


def _functions(view: Any, view_name: str) -> Iterator[tuple[Any, str, list[str]]]:
    """The view, and the other functions that handle its requests, such as the methods of a class; each with its own
    names."""
    while isinstance(view, partial):
        view = view.func
    yield view, view_name, _defaults(view)
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's, Django REST framework's
    if cls is not None:
        methods = getattr(view, "actions", None) or {name: name for name in cls.http_method_names}
        for method in filter(None, (getattr(cls, name, None) for name in dict.fromkeys(methods.values()))):
            yield method, f"{view_name}.{getattr(method, '__name__', method)}", [*_defaults(method), "self"]
    for operation in getattr(view, OPERATIONS, ()):
        yield operation, f"{operation.__module__}.{operation.__qualname__}", list(_parameters(operation))


def _defaults(function: Any) -> list[str]:
    return [name for name, parameter in _parameters(function).items() if parameter.default is not parameter.empty]


def _parameters(function: Any) -> Mapping[str, Any]:
    signature = Arguments(function).signature
    return signature.parameters if signature is not None else {}
