"""The locks in the admin: their holders and waiters, and a forced release, which is confirmed and logged."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import md5
from typing import Any

import django
from django.conf import settings as django_settings
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import get_conditional_response
from django.utils.crypto import constant_time_compare
from django.utils.http import quote_etag, url_has_allowed_host_and_scheme
from django.utils.translation import get_language, get_language_bidi, ngettext_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from django_rlock.console import inspection
from django_rlock.console.deadlocks import mark
from django_rlock.console.history import History, read_history
from django_rlock.console.listing import METRICS_TYPE, Overview, exposition
from django_rlock.console.reading import listed_aliases
from django_rlock.console.rows import Row, public_dict
from django_rlock.console.survey import Survey, queued_messages
from django_rlock.console.timeline import Chart, read_timeline
from django_rlock.exceptions import LockUnavailableError
from django_rlock.locks import rlock
from django_rlock.locks.infos import Holder, LockInfo
from django_rlock.models import Lock
from django_rlock.settings import get_aliases, get_settings
from django_rlock.version import __version__

MAX_REASON = 200
REFRESH = "X-Rlock-Refresh"
"""The header of a request with which an open page refreshes itself. A request without it, such as the one after a
forced release, reads everything."""
ERRORS = LockUnavailableError, ImproperlyConfigured, ValueError
_OUTCOMES = {
    "freed": (messages.SUCCESS, ngettext_lazy("%(count)d lock was freed.", "%(count)d locks were freed.", "count")),
    "gone": (
        messages.WARNING,
        ngettext_lazy(
            "%(count)d lock was not freed: the holder shown no longer holds it.",
            "%(count)d locks were not freed: the holders shown no longer hold them.",
            "count",
        ),
    ),
    "failed": (
        messages.ERROR,
        ngettext_lazy(
            "%(count)d lock could not be freed: Redis did not respond.",
            "%(count)d locks could not be freed: Redis did not respond.",
            "count",
        ),
    ),
}
"""What tells of each outcome of a forced release, and at which level."""
"""The errors of reading locks; ValueError is for an invalid name."""


@dataclass(frozen=True, slots=True)
class Target:
    """A lock and the owner that a page has shown; a forced release frees the lock only from that owner.

    ``lock`` is the lock's current state; None if the lock is free or was not read.
    """

    using: str
    name: str
    owner: str
    lock: LockInfo | None = None

    @classmethod
    def of(cls, lock: LockInfo) -> Target:
        return cls(lock.using, lock.name, lock.holder.owner, lock)

    @classmethod
    def parse(cls, value: str) -> Target:
        """The target in a form's field. Raises ValueError or TypeError if the field was tampered with."""
        using, name, owner = json.loads(value)
        if not all(isinstance(text, str) and text for text in (using, name, owner)):
            raise ValueError("A target consists of three texts.")
        return cls(using, name, owner)

    def __str__(self) -> str:
        return json.dumps([self.using, self.name, self.owner])

    @property
    def holder(self) -> Holder | None:
        """The owner, if it still holds the lock."""
        holders = self.lock.holders if self.lock else ()
        return next((holder for holder in holders if holder.owner == self.owner), None)

    @property
    def log_object(self) -> Lock:
        """The object of an entry in the admin's log. PostgreSQL's texts cannot contain NUL."""
        return Lock.of(self.using, self.name.replace("\0", "\\0"))


class LockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for type checkers only
    """Shows locks to users with ``view_lock``; users with ``force_release_lock`` see locks and may free them."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="django_rlock_lock_changelist"),
            path("processes/", view(self.processes_view), name="django_rlock_lock_processes"),
            path("history/", view(self.past_view), name="django_rlock_lock_history"),
            path("history.json", self._for_programs(self.past_json_view), name="django_rlock_lock_history_json"),
            path("locks.json", self._for_programs(self.json_view), name="django_rlock_lock_json"),
            path("metrics", self._for_programs(self.metrics_view), name="django_rlock_lock_metrics"),
            path("stack/", view(self.stack_view), name="django_rlock_lock_stack"),
            path("force-release/", view(self.force_release_view), name="django_rlock_lock_force_release"),
            path("<path:object_id>/change/", view(self.change_view), name="django_rlock_lock_change"),
        ]

    # --- permissions -------------------------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:  # noqa: ARG002
        return False

    def has_view_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:
        may_view: bool = request.user.has_perm("django_rlock.view_lock")
        return may_view or self.has_force_release_permission(request, obj)

    def has_force_release_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:  # noqa: ARG002
        """Whether the user may free locks, or (with ``obj``, whose id is ``<alias>/<name>``) that lock."""
        return bool(request.user.has_perm("django_rlock.force_release_lock"))

    def has_view_stack_permission(self, request: HttpRequest, obj: Lock | None = None) -> bool:  # noqa: ARG002
        """Whether the user may see the call stacks of the holders of locks, or (with ``obj``) of that lock."""
        return bool(request.user.has_perm("django_rlock.view_stack"))

    # --- pages -------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self._require(self.has_view_permission(request))
        overview = Overview(request.GET.dict(), REFRESH in request.headers)

        def page() -> HttpResponse:
            context = {
                "title": _("Locks"),
                "listing": overview.listing,
                "rows": [(Row(lock), Target.of(lock)) for lock in overview.locks],
                "deadlocks": overview.deadlocks,
                "summary": overview.summary,
                "longest": overview.waited_for_longest,
                "problems": _problems(overview),
                "scan": overview.scan,
                "may_release": self.has_force_release_permission(request),
            }
            return self._page(request, "change_list", context | (extra_context or {}))

        return _unless_unchanged(request, overview, page)

    def json_view(self, request: HttpRequest) -> HttpResponse:
        """A page of the list for programs. Owner ids are shortened. The status is 503 if nothing could be read."""
        self._require(_has_token(request) or self.has_view_permission(request))
        overview = Overview(request.GET.dict(), REFRESH in request.headers)

        def page() -> HttpResponse:
            listing, locks = overview.listing, overview.locks
            problems = _problems(overview)  # after the locks were read, which may fail
            document = {
                "locks": [public_dict(lock) for lock in locks],
                "summary": asdict(overview.summary),
                "matching": len(listing.matching),
                "total": listing.total,
                "page": listing.page.number,
                "pages": listing.page.paginator.num_pages,
                "problems": problems,
            }
            return JsonResponse(document, status=503 if problems and not locks else 200)

        return _unless_unchanged(request, overview, page)

    def metrics_view(self, request: HttpRequest) -> HttpResponse:
        """The numbers of locks, for Prometheus; the status is 503 if nothing could be read."""
        self._require(_has_token(request) or self.has_view_permission(request))
        overview = Overview({})
        text = exposition(overview)  # it reads locks, which may fail
        failed = _problems(overview) and not overview.summary.aliases
        return HttpResponse(text, content_type=METRICS_TYPE, status=503 if failed else 200)

    def processes_view(self, request: HttpRequest) -> HttpResponse:
        """The processes that hold locks or wait for them."""
        self._require(self.has_view_permission(request))
        overview = Overview({})
        context = {"title": _("Processes"), "processes": overview.processes, "problems": _problems(overview)}
        return self._page(request, "processes", context)

    def past_view(self, request: HttpRequest) -> HttpResponse:
        """The last hour by template, and the locks that were lost or force-released."""
        self._require(self.has_view_permission(request))
        history = read_history()
        context = {"title": _("History"), "history": history, "problems": _problems(history)}
        return self._page(request, "history", context)

    def past_json_view(self, request: HttpRequest) -> HttpResponse:
        """The history for programs; the status is 503 if nothing could be read."""
        self._require(_has_token(request) or self.has_view_permission(request))
        history = read_history()
        problems = _problems(history)
        failed = problems and not (history.work or history.events)
        return JsonResponse(history.as_dict() | {"problems": problems}, status=503 if failed else 200)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002 - the signature is Django's
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        obj = Lock(id=unquote(object_id))
        using, name = obj.address
        self._require(self.has_view_permission(request, obj))
        lock, timeline, problems, queued = None, None, [], []
        try:
            if not name or using not in get_aliases():
                raise Http404
            lock = _read_lock(using, name, REFRESH in request.headers)
            # Free locks have queued messages and a past, too.
            queued = queued_messages(using, [name])
            timeline = read_timeline(using, name, lock)
        except ERRORS as error:
            problems = [problem_text(using, error)]
        context = {
            "title": name,
            "name": name,
            "using": using,
            "row": Row(lock) if lock else None,
            "target": Target.of(lock) if lock else None,
            "deadlocks": [lock.deadlock] if lock and lock.deadlock else [],
            "queued": queued,
            "timeline": timeline,
            "chart": Chart(timeline, get_language_bidi()) if timeline else None,
            "problems": problems,
            "may_release": self.has_force_release_permission(request, obj),
            "may_see_stacks": _shows_stacks(using) and self.has_view_stack_permission(request, obj),
        }
        return self._page(request, "change_form", context | (extra_context or {}))

    def stack_view(self, request: HttpRequest) -> HttpResponse:
        """Show the call stack of a holder, which the POST names by lock and shortened owner id."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        using, name, owner = request.POST.get("using", ""), request.POST.get("name", ""), request.POST.get("stack", "")
        obj = Lock.of(using, name)
        self._require(self.has_view_permission(request, obj) and self.has_view_stack_permission(request, obj))
        if not _shows_stacks(using):
            raise Http404
        stack, holder, problems = None, None, []
        try:
            lock = inspection.lock_info(name, using)
            # Pages and forms contain shortened ids only.
            holder = next((each for each in (lock.holders if lock else ()) if each.short_owner == owner), None)
            stack = inspection.holder_stack(lock, holder) if lock and holder else None
        except ERRORS as error:
            problems = [problem_text(using, error)]
        context = {"title": _("Stack"), "name": name, "using": using, "holder": holder, "stack": stack}
        return self._page(request, "stack", context | {"problems": problems})

    def force_release_view(self, request: HttpRequest) -> HttpResponse:
        """A POST of selected locks shows a confirmation; the POST of the confirmation releases the locks."""
        self._require(self.has_force_release_permission(request))
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            targets = self._targets(request)
            if not targets:
                messages.warning(request, _("Select the locks to free."))
            elif "confirm" in request.POST:
                self._release(request, targets, request.POST.get("reason", "").strip()[:MAX_REASON])
            else:
                return self._confirmation(request, _with_locks(targets))
        except ERRORS as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(self._way_back(request))

    # --- force release -----------------------------------------------------------------------------------------------

    def _targets(self, request: HttpRequest) -> list[Target]:
        try:
            targets = [Target.parse(value) for value in dict.fromkeys(request.POST.getlist("lock"))]
        except (ValueError, TypeError, RecursionError) as error:
            raise BadRequest("The form's field for a selected lock is malformed.") from error
        if any(target.using not in get_aliases() for target in targets):
            raise BadRequest("RLOCK has no alias with this name.")
        for target in targets:
            self._require(self.has_force_release_permission(request, target.log_object))
        return targets

    def _confirmation(self, request: HttpRequest, targets: list[Target]) -> HttpResponse:
        context = {
            "title": _("Force release"),
            "targets": targets,
            "releasable": [target for target in targets if target.holder],
            "any_alive": any(target.holder and not target.holder.silent for target in targets),
            "max_reason": MAX_REASON,
            "next": self._way_back(request),
        }
        return self._page(request, "force_release", context)

    def _way_back(self, request: HttpRequest) -> str:
        """The page whose panel asked for the release, or the list."""
        page = request.POST.get("next", "")
        if url_has_allowed_host_and_scheme(page, {request.get_host()}, request.is_secure()):
            return page
        return reverse("admin:django_rlock_lock_changelist", current_app=self.admin_site.name)

    def _release(self, request: HttpRequest, targets: list[Target], reason: str) -> None:
        with suppress(LockUnavailableError):  # then the log names only the owners
            targets = _with_locks(targets)
        outcomes = Counter(self._release_one(request, target, reason) for target in targets)
        for outcome, (level, text) in _OUTCOMES.items():
            if count := outcomes[outcome]:
                messages.add_message(request, level, text % {"count": count})

    def _release_one(self, request: HttpRequest, target: Target, reason: str) -> str:
        try:
            operator = f"{request.user.get_username()} in the admin"
            freed = inspection.force_release(target.name, target.owner, target.using, reason, by=operator)
            outcome, text = ("freed", "Force-released") if freed else ("gone", "Not freed: the owner no longer held it")
        except LockUnavailableError as error:
            outcome, text = "failed", f"Not freed: {error.reason}"
        holder = f" ({target.holder})" if target.holder else ""
        message = f"{text}. Owner: {target.owner}{holder}. Reason: {reason or '–'}"
        self.log_change(request, target.log_object, message.replace("\0", "\\0"))
        return outcome

    def _for_programs(self, view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
        """A view that programs may read with RLOCK_API_TOKEN instead of a login; users need a login as for any other
        page, also if a proxy adds its own token to their requests."""
        for_people = self.admin_site.admin_view(view)

        def answered(request: HttpRequest) -> HttpResponse:
            if request.method not in ("GET", "HEAD"):
                return HttpResponseNotAllowed(["GET", "HEAD"])
            if _has_token(request):
                return never_cache(view)(request)
            if _sent_token(request) is None or self.admin_site.has_permission(request):
                return for_people(request)
            return HttpResponse("The token is wrong.", status=401, headers={"WWW-Authenticate": "Bearer"})

        answered.login_required = False  # type: ignore[attr-defined]  # for LoginRequiredMiddleware: see above
        return answered

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _require(self, permitted: bool) -> None:
        if not permitted:
            raise PermissionDenied

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name  # the url tag reads it: a project may have several admin sites
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "breadcrumbs_as_list": django.VERSION >= (6, 1),
        }
        return TemplateResponse(request, f"admin/django_rlock/lock/{template}.html", common | context)


def _has_token(request: HttpRequest) -> bool:
    """Whether a program sent the token of RLOCK_API_TOKEN."""
    sent, token = _sent_token(request), getattr(django_settings, "RLOCK_API_TOKEN", None)
    # An empty setting lets no program in, whatever it sends.
    if not sent or not token:
        return False
    # Django decodes headers as Latin-1, while most programs send UTF-8.
    as_received = token.encode("utf-8", "surrogateescape").decode("latin-1")
    return any([_is_same(sent, token), _is_same(sent, as_received)])


def _is_same(sent: str, token: str) -> bool:
    return constant_time_compare(sent.encode("utf-8", "surrogatepass"), token.encode("utf-8", "surrogatepass"))


def _sent_token(request: HttpRequest) -> str | None:
    """The token that a request bears; None for a request without any."""
    scheme, _space, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip(" \t") if scheme.lower() == "bearer" else None


def _unless_unchanged(request: HttpRequest, overview: Overview, respond: Callable[[], HttpResponse]) -> HttpResponse:
    """The response, or 304 if the browser has it already: the ETag changes with the page, but not with the passing of
    time, which the browser counts. A page with problems has none, nor one with messages, which are shown once."""
    if len(messages.get_messages(request)) or list(overview.problems):
        return respond()
    shown = overview.fingerprint, request.get_full_path(), request.user.pk, get_language(), __version__
    # They decide which links and buttons the page has.
    permissions = sorted(request.user.get_all_permissions())
    etag = quote_etag(md5(repr((shown, permissions)).encode(), usedforsecurity=False).hexdigest())
    response = get_conditional_response(request, etag) or respond()
    response["ETag"] = etag
    return response


def _problems(found: Overview | History) -> list[str]:
    return [problem_text(using, error) for using, error in found.problems]


def _read_lock(using: str, name: str, is_refresh: bool) -> LockInfo | None:
    """A lock's current state, with the deadlock that it is part of, across all aliases."""
    key = rlock(name, using=using).key  # raises ValueError for an invalid name
    survey = Survey(listed_aliases(using), key, is_refresh)
    found = mark(survey.read([(using, name)]), survey.deadlocks())
    if using in survey.errors:
        raise survey.errors[using]
    return next(iter(found), None)


def _shows_stacks(using: str) -> bool:
    """Whether SHOW_STACKS is on for an alias; False if the alias is unknown or invalid."""
    with suppress(ImproperlyConfigured):
        return get_settings(using).show_stacks
    return False


def problem_text(using: str, error: Exception) -> str:
    if not isinstance(error, LockUnavailableError):
        return str(error)
    return _("Redis “%(alias)s” did not respond: %(reason)s") % {"alias": using, "reason": error.reason}


def _with_locks(targets: list[Target]) -> list[Target]:
    """The targets with the current state of their locks."""
    # One reading for each alias, however many locks were selected.
    names: dict[str, list[str]] = defaultdict(list)
    for target in targets:
        names[target.using].append(target.name)
    found = {(using, lock.name): lock for using in names for lock in inspection.lock_infos(names[using], using)}
    return [replace(target, lock=found.get((target.using, target.name))) for target in targets]
