"""Filters and tags that show names, routes and durations."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django import template
from django.contrib.admin.utils import quote as quote_pk
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.urls import NoReverseMatch, reverse
from django.utils.formats import date_format, get_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext

from django_rlock._core.text import printable
from django_rlock._web.keytemplates import KeyTemplate
from django_rlock.console.inspection import lock_info
from django_rlock.console.pages import ERRORS, Target, problem_text
from django_rlock.locks import rlock
from django_rlock.locks.infos import clock_text, duration_parts, local_time, rate_number
from django_rlock.settings import DEFAULT_ALIAS, get_settings

register = template.Library()
register.filter("clock", clock_text)


@register.filter
def shown(text: object) -> SafeString:
    """A text from Redis, isolated from the direction of the text around it, with its control characters made
    visible."""
    return format_html("<bdi>{}</bdi>", printable(text))


@register.filter
def visible(text: object) -> str:
    """The text with its control characters made visible, for attributes and titles, which contain no markup."""
    return printable(text)


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds for people: ``7.1 s``, ``3 min 20 s``."""
    return " ".join(f"{_localized(count)} {_unit(unit)}" for count, unit in duration_parts(seconds)) or "–"


@register.filter
def precise(seconds: float | None) -> str:
    """Seconds for people, in milliseconds below one second: ``12 ms``."""
    if not isinstance(seconds, float):
        return "–"
    if seconds >= 1:
        return duration(seconds)
    return f"{_localized(f'{1000 * seconds:.{0 if seconds >= 0.01 else 1}f}')} {_unit('ms')}"


@register.filter
def rate(per_second: float) -> str:
    """How often something happens: ``120/s``."""
    return f"{_localized(rate_number(per_second))}/{_unit('s')}"


@register.simple_tag
def ago(seconds: float | None, since: float | None = None) -> str:
    """A growing duration; its tooltip shows when it began."""
    return _time(seconds, since, "1")


@register.simple_tag
def left(seconds: float | None, until: float | None = None) -> str:
    """A shrinking duration; its tooltip shows when it ends."""
    return _time(seconds, until, "-1")


@register.filter
def moment(timestamp: float | None) -> str:
    """A time of the server's clock, in the project's time zone, to the second: an incident is put together by
    seconds."""
    found = local_time(timestamp)
    return "–" if found is None else f"{date_format(found)} {found:%H:%M:%S} {found.tzname()}"


@register.simple_tag
def task_id(using: str, task: str, short: bool = False) -> SafeString:
    """A Celery task's id, linked to the page that TASK_URL of the alias names."""
    text = Truncator(task).chars(9) if short else task
    # Flower's page of a task, for example.
    url = get_settings(using).task_url
    if url is None:
        return format_html('<code class="rlock-id" title="{}">{}</code>', printable(task), shown(text))
    href = url.replace("{id}", quote(task, safe=""))
    return format_html('<a class="rlock-id" href="{}" title="{}">{}</a>', href, printable(task), shown(text))


@register.simple_tag(takes_context=True)
def user_link(context: dict[str, Any], pk: str) -> SafeString:
    """A user by primary key, linked to the user's page if this admin has such a page; with the name, if the request's
    user may view users."""
    about = get_user_model()._meta  # noqa: SLF001 - public in Django's documentation
    request = context.get("request")
    name = _name_of_user(request, pk)
    try:
        url = reverse(
            f"admin:{about.app_label}_{about.model_name}_change",
            args=[quote_pk(pk)],
            current_app=getattr(request, "current_app", None),
        )
    except NoReverseMatch:
        return shown(name)
    return format_html('<a href="{}">{}</a>', url, shown(name))


def _name_of_user(request: Any, pk: str) -> str:
    model = get_user_model()
    viewer = getattr(request, "user", None)
    if viewer is None or not viewer.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}"):  # noqa: SLF001
        return pk
    try:
        user = model._default_manager.filter(pk=pk).first()  # noqa: SLF001
    except (ValueError, ValidationError, OverflowError):  # no process of ours has reported it
        return pk
    return pk if user is None else user.get_username()


@register.inclusion_tag("admin/django_rlock/lock/panel.html", takes_context=True)
def rlock_panel(context: template.Context, key: str, using: str = DEFAULT_ALIAS, **values: Any) -> dict[str, Any]:
    """Who holds an object's lock, since when and for which request, and a button to release it, for the object's own
    page::

        {% load rlock %}{% rlock_panel "stock:<item.pk>" item=original %}

    ``key`` is the key template of ``@distributed_lock``, and ``values`` are the arguments that it names; without an
    object, as on the page that adds one, the panel is empty. It is also empty for users without the permission to view
    locks, and has no button without the permission to release them. The button leads to the confirmation, and then
    back. Raises KeyTemplateError for a wrong template. Put it outside other forms.
    """
    request: Any = context.get("request")
    may = getattr(getattr(request, "user", None), "has_perm", lambda _permission: False)
    may_release = may("django_rlock.force_release_lock")
    has_object = all(value not in (None, "") for value in values.values())
    if not (has_object and (may_release or may("django_rlock.view_lock"))):
        return {"may_view": False}
    panel = {"may_view": True, "may_release": may_release, "request": request, "next": request.get_full_path()}
    panel |= {name: context.get(name) for name in ("csrf_token", "csp_nonce")}
    name = KeyTemplate.parse(key).render(values)
    try:
        lock = lock_info(rlock(name, using=using).name, using)
    except ERRORS as error:
        return panel | {"problem": problem_text(using, error)}
    if lock is None or not lock.holders:
        return panel
    return panel | {"lock": lock, "holder": lock.holder, "target": Target.of(lock)}


def _time(seconds: float | None, at: float | None, step: str) -> str:
    if seconds is None:
        return "–"
    return format_html(
        '<bdi><time data-seconds="{}" data-step="{}" title="{}">{}</time></bdi>',
        f"{seconds:.1f}",
        step,
        "" if at is None else moment(at),
        duration(seconds),
    )


@register.inclusion_tag("admin/django_rlock/lock/live.html")
def live(scan: bool = False) -> dict[str, Any]:
    """The attributes of a part of a page that refreshes itself, unless that needs a scan; for the page's script."""
    return {"scan": scan, "decimal": get_format("DECIMAL_SEPARATOR")}


def _localized(number: str) -> str:
    return number.replace(".", str(get_format("DECIMAL_SEPARATOR")))


def _unit(name: str) -> str:
    # makemessages finds literals only.
    return {"d": gettext("d"), "h": gettext("h"), "min": gettext("min"), "s": gettext("s"), "ms": gettext("ms")}[name]
