"""The differences between the kinds of locks: their scripts, the messages that wake their waiters, how long these
sleep.

A lock is one public class (``base``) over an engine, which has the flows that all locks share, and a kind. A kind is an
object without state: its methods turn a lock's name and settings, an owner's name and a lease into script calls. It
contains no loops, does no I/O, and knows neither bindings nor holds. Each kind is in the file of its public class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from django_rlock._core.text import printable
from django_rlock._redis import keys, scripts
from django_rlock._transport.calls import REMEMBERED, Argument, Driver, ScriptCall, Template, kept
from django_rlock._transport.identity import Owner, client_id
from django_rlock._transport.servers import is_cluster
from django_rlock.exceptions import RLockError
from django_rlock.locks.options import milliseconds
from django_rlock.settings import AliasSettings, settings_of

REPOLL = 30.0
"""The longest sleep of a waiter before it tries again unwoken, in seconds, in case a message was lost."""
JAVA_POLL = 0.1
"""How often a waiting process checks a lock that a Java client holds, in seconds: its release may send no message."""
_MAX_TEXT = 300
"""The maximum length of the reason that holders get for a forced release, in characters."""
TOGETHER = FENCED, PLAIN, WRITE, READ, LIMITED = "fenced", "plain", "write", "read", "limited"
"""How MultiLock's scripts take a lock, in the order of their keys. The last three are sides of a read-write lock, whose
state the limited lock shares. Write comes before read, because a reader may not acquire the write lock."""
RENEW, EXTEND, SETTLE = 1, 0, 2
"""How a command changes a lease: prolong it, replace it, or disable replacements that may come late."""


class Named:
    """An object with a name, a kind and an alias ``using``."""

    __slots__ = ("name", "using")

    kind: ClassVar[str]
    noun: ClassVar[str] = "lock"
    """Its name in errors and log records."""
    _kind: Kind[Any]

    name: str
    using: str
    template: str = ""
    """The key template from which a decorator or a task made the name; "" if there is none."""

    # Of kinds that can be held:
    on_lost: Callable[[Any], object] | None
    max_hold_time: float | None

    @property
    def key(self) -> str:
        """The key in Redis: the name with the alias's prefix."""
        return settings_of(self.using).key_prefix + self.name

    @property
    def _settings(self) -> AliasSettings:
        return settings_of(self.using)


class Handle(Named):
    """An object that users make: a lock, a semaphore or a latch. Its ``__dict__`` lets mocks replace its methods."""

    __slots__ = ("__dict__", "__weakref__")


class Engine(Protocol):
    """The flows of a lock. A single lock's are in ``acquire``, ``release``, ``ownership`` and ``forced``; a MultiLock
    has its own.
    """

    def take(self, lock: Any, driver: Driver, request: Any, /) -> Coroutine[Any, Any, bool]: ...
    def release(self, lock: Any, driver: Driver, owner: Owner, blocks: int = 0, /) -> Coroutine[Any, Any, None]: ...
    def uncount_block(self, lock: Any, owner: Owner, /) -> None: ...
    def extend(self, lock: Any, driver: Driver, owner: Owner, lease: Any, /) -> Coroutine[Any, Any, None]: ...
    def free_by_force(
        self, lock: Any, driver: Driver, caller: Owner, owner: str | None, reason: str, /
    ) -> Coroutine[Any, Any, bool]: ...
    def ask_state(self, lock: Any, driver: Driver, owner: Owner, /) -> Coroutine[Any, Any, tuple[int, int]]: ...
    def ask_holders(self, lock: Any, driver: Driver, /) -> Coroutine[Any, Any, list[str]]: ...


class _Used(Protocol):
    """The methods of ``BaseLock`` that the flows call."""

    @property
    def parts(self) -> tuple[AbstractLock, ...]: ...
    def release(self) -> None: ...
    def enter(self, *, describe: bool = True) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, kind: Any, error: Any, trace: Any, *, owner: Owner | None = None) -> None: ...
    async def _exit(self, driver: Driver, owner: Owner, error: BaseException | None) -> None: ...
    def _exit_block(
        self, kind: Any, error: Any, trace: Any, *, owner: Owner | None = None, warns: bool = True
    ) -> None: ...
    def _under_name(self, owner: str) -> Self: ...
    def _depth(self, key: Any) -> tuple[int, int]: ...


if TYPE_CHECKING:

    class _Handle(Handle, _Used): ...

else:
    _Handle = Handle  # locks are made for each call, and a protocol's metaclass would make that slower


class AbstractLock(_Handle):
    """The part of a lock that the flows use; ``BaseLock`` describes it."""

    __slots__ = ()

    _engine: ClassVar[Engine]
    _named_owner: Owner | None
    at_least: float | None
    until_commit: str | None

    @property
    def owner(self) -> str | None:
        """The name that was given to its owner."""
        return None if self._named_owner is None else self._named_owner.owner_id


def note_templates(lock: AbstractLock, templates: Mapping[str, str]) -> None:
    """Record the key template from which each name of a lock was made; names without one may be left out."""
    for part in lock.parts:
        part.template = templates.get(part.name, "")


class Candidate:
    """An owner that asks for a lock.

    ``asker`` is the owner's name in the queue, where that is not its owner id, and ``beside`` its owner id on the other
    side of a read-write lock.
    """

    __slots__ = ("asker", "beside", "lock", "owner", "owner_id")

    def __init__(self, lock: Named, owner: Owner, owner_id: str) -> None:
        self.lock = lock
        self.owner = owner
        self.owner_id = self.asker = owner_id
        self.beside = ""


SomeLock = TypeVar("SomeLock", bound=AbstractLock)

L = TypeVar("L", bound=Named)
"""The public class of a kind."""


class Kind(Generic[L]):
    """One kind of lock. The methods get the lock (``lock``) and say which call to send; durations are seconds.

    A kind must implement ``acquire``, ``leave`` and ``channel``, and ``release`` if it is held. The other methods
    implement Redisson's plain lock: a hash owner → count at the lock's key, and no queue.
    """

    scope: ClassVar[str] = ""
    """Separates holds of the same owner and name: the two sides of a read-write lock."""
    other: ClassVar[str] = ""
    """The scope of the other side, if there is one."""
    joins: ClassVar[str] = ""
    """As which of ``TOGETHER`` MultiLock's scripts may take and free it; "" if only its own scripts may."""
    writes: ClassVar[bool] = True
    """Whether an acquire writes to the server, so that replicas may have to confirm it."""
    fresh_names: ClassVar[bool] = False
    """Whether each try of an attempt needs a new owner id, because the clean-up of an earlier try may arrive later."""
    hears_forced: ClassVar[bool] = True
    """Whether a process that holds it for long listens to forced releases."""
    patience: ClassVar[float] = math.inf
    """An acquire is retried for at most this long: after that the server may have forgotten the request."""
    heartbeats_together: ClassVar[int] = 1
    """How many locks of one server (in a cluster: slot) one heartbeat may cover."""
    java_poll: ClassVar[float] = math.inf
    """JAVA_POLL for a kind whose heartbeats check that."""
    drifts: ClassVar[bool] = False
    """Whether a holder counts its lease shorter than the servers do, by ``drift``."""
    release_renews: ClassVar[bool] = True
    """Whether the reply to an inner release proves that the lease began anew."""
    votes: ClassVar[Mapping[scripts.Script, Callable[..., ScriptCall]]] = {}
    """For a kind with several servers: how the replies to each script are combined."""

    # --- take it, wait for it ----------------------------------------------------------------------------------------

    def begin(self, candidate: Candidate, now: float) -> None:
        """Called before the first try. Raise errors that waiting cannot cure; store what the calls need besides the
        owner id."""

    def acquire(
        self, lock: L, asker: str, count: int, lease: float, waiting: bool = False, beside: str = ""
    ) -> ScriptCall:
        """Returns OK, perhaps with a token; or LOST (a re-entry whose hold is gone); or the holder's remaining lease in
        ms. A kind with a queue adds two values: 1 if the holder ignores the queue (a Java client), and the ticket
        drawn or "". ``asker`` and ``beside`` are the attempt's."""
        raise NotImplementedError

    def refusal(self, lock: L, reply: list[Any]) -> RLockError:
        """The error for a textual reply of ``acquire`` with the kind's own meaning; no wait can change it."""
        raise NotImplementedError

    def channel(self, lock: L) -> str | None:
        """The channel whose messages wake a waiter; None if it only sleeps."""
        raise NotImplementedError

    def token(self, lock: L, asker: str) -> str | None:
        """Which messages of the channel wake a waiter; see ``Driver.listen``."""
        return None

    def pauses(self, lock: L, left_ms: int, tries: int) -> tuple[float, float]:
        """How long a waiter sleeps at most after these tries, and in how long its process sends heartbeats for it (inf:
        never)."""
        # In its last millisecond a lease is returned as 0, but still runs.
        return min(REPOLL, (left_ms + 1) / 1000) if left_ms >= 0 else REPOLL, math.inf

    def heartbeat(self, waiting: Sequence[tuple[L, str]], pause: float) -> ScriptCall:
        """Heartbeats for locks of this kind and alias. Each comes with its process's longest waiting owner. The kind
        knows for how long its waiters then count as alive; a process that waits for many fair locks sends the next
        heartbeat after ``pause`` seconds. Returns for each lock a state (see ``heartbeats``) and the remaining lease in
        ms."""
        raise NotImplementedError

    def outside_channels(self, lock: L) -> tuple[str, ...]:
        """The channels whose messages bring a heartbeat at once, while an owner that does not know the queue holds the
        lock."""
        return ()

    # --- give it up, give it back ------------------------------------------------------------------------------------

    def leave(self, lock: L, asker: str) -> ScriptCall:
        """Undoes an attempt whose outcome is unwanted: afterwards there is no hold and no ticket in a queue."""
        raise NotImplementedError

    def withdraw(self, lock: L, asker: str) -> ScriptCall | None:
        """Removes the ticket that a named owner left in the queue, but no hold: that may belong to another process or a
        later call. None for a kind that does not remember waiters."""
        return None

    def undo(self, lock: L, owner: Owner, asker: str) -> ScriptCall | None:
        """Undoes an unwanted acquire. For a named owner it undoes only the ticket: another thread or process
        may rely on the hold."""
        return self.withdraw(lock, asker) if owner.is_named else self.leave(lock, asker)

    def release(self, lock: L, owner_id: str, left: int, lease: float) -> ScriptCall:
        """Returns 1, or 0 when the owner does not hold it."""
        raise NotImplementedError

    def keep(self, lock: L, owner_id: str, seconds: float) -> ScriptCall:
        """Releases a hold, but keeps the lock taken for ``seconds``, for all owners. Returns 1, or 0 when the owner
        does not hold it."""
        return call_for(lock, scripts.LOCK_KEEP, owner_id, milliseconds(seconds))

    def check_keep(self, lock: L, seconds: float) -> None:
        """Raise ValueError for a time for which the kind cannot keep a lock that was released."""

    def condition(self, lock: L) -> int:
        """The number with which MultiLock's script decides whether a side may be taken."""
        return 0

    # --- hold it -----------------------------------------------------------------------------------------------------

    def lease(self, lock: L, owner_id: str, lease: float, mode: int) -> ScriptCall:
        """RENEW leaves a longer lease as it is; EXTEND may shorten it; SETTLE makes earlier calls of EXTEND do nothing
        if they come after it. Returns 1, or 0 when the owner does not hold it."""
        if mode == RENEW:
            return call_for(lock, scripts.LOCK_RENEW, milliseconds(lease), owner_id, all_keys=(lock.key,))
        state, *told = keys.shorter_lease_keys(lock.key)
        all_keys = state, *settled_keys(lock, owner_id, mode), *told
        return call_for(lock, scripts.LOCK_EXTEND, owner_id, milliseconds(lease), mode, all_keys=all_keys)

    def check_lease(self, lock: L, lease: float) -> None:
        """Raise ValueError for a lease that the kind cannot give."""

    def drift(self, lock: L, lease: float) -> float:
        """By how many seconds a holder counts its lease shorter than the servers do."""
        return 0.0

    # --- ask about it ------------------------------------------------------------------------------------------------

    def state(self, lock: L, owner_id: str) -> ScriptCall:
        """Returns the owner's holds, and the remaining lease in ms (-2 free, -1 without end)."""
        return call_for(lock, scripts.LOCK_STATE, owner_id)

    def lease_left(self, reply: list[Any]) -> int:
        """The owner's lease in a reply of ``state``: the remaining ms, ENDLESS, or ABSENT if the owner holds
        nothing."""
        left: int = reply[2] if reply[1] else scripts.ABSENT
        return left

    def field(self, owner_id: str) -> str:
        """The field of an owner in the lock's hash."""
        return owner_id


def call_for(
    lock: Named, script: scripts.Script, first: Argument, *rest: Argument, all_keys: tuple[str, ...] | None = None
) -> ScriptCall:
    """A call with the keys that the script has for the lock. ``all_keys`` are for calls whose keys, or arguments after
    the first, differ each time: nothing of these is kept."""
    key = settings_of(lock.using).key_prefix + lock.name  # as lock.key, without a call
    votes = lock._kind.votes
    if votes:
        return votes[script](lock.name, script, all_keys or script.keys_of(key), (first, *rest))
    template = kept(script, rest) if all_keys is None else Template(script, rest, all_keys)
    return ScriptCall(lock.name, template, key, first, lock.noun)


def holders_call(lock: Named) -> ScriptCall:
    """Returns the fields of the lock's hash for the owners that hold it."""
    return call_for(lock, scripts.LOCK_HOLDERS, "")


class Forced(NamedTuple):
    """The message to holders about a forced release: the lock's key, the owner's field there ("" for any), and a text
    about how it was freed."""

    key: str
    field: str = ""
    how: str = ""

    @classmethod
    def parse(cls, payload: str) -> Forced:
        """A message that is no such list is a key."""
        with suppress(ValueError, RecursionError):
            words = json.loads(payload)
            if isinstance(words, list) and [*map(type, words)] == [str, str, str]:
                return cls(words[0], words[1], printable(words[2][:_MAX_TEXT]))
        return cls(payload)


def force_release_call(lock: Named, owner_id: str | None, request: str, how: str) -> ScriptCall:
    """Returns 1, or 0 when the lock, or that owner's hold, does not exist. Holders are told ``how`` it was freed."""
    kind, claim = lock._kind, milliseconds(settings_of(lock.using).claim_time)
    field = kind.field(owner_id) if owner_id else ""
    all_keys, message = keys.force_release_keys(lock.key), json.dumps(Forced(lock.key, field, how[:_MAX_TEXT]))
    args = field, claim, kind.scope, request, forced_channel(lock), message
    return call_for(lock, scripts.LOCK_FORCE_RELEASE, *args, all_keys=all_keys)


def leave_javas_call(lock: Named) -> ScriptCall:
    """Removes the entry of our waiters from the queue of Redisson's fair lock. If other processes still wait, their
    heartbeats bring it back."""
    return call_for(lock, scripts.JAVA_LEAVE, "")


def retire_call(lock: Named, request: str | bytes) -> ScriptCall:
    """Makes a request do nothing from now on."""
    all_keys = (keys.requests_key(lock.key),)
    return call_for(lock, scripts.REQUEST_RETIRE, request, milliseconds(REMEMBERED), all_keys=all_keys)


def settled_keys(lock: Named, owner_id: str, mode: int) -> tuple[str, ...]:
    """The key that records which extensions must no longer be executed, for the calls that need it."""
    return () if mode == RENEW else (keys.settled_key(lock.key, client_id(), owner_id),)


def forced_channel(lock: Named) -> str:
    """The channel that notifies holders of forced releases; they then ask the server about their hold."""
    return keys.forced_channel(lock.key if is_cluster(lock.using) else None)


def owner_id_in(field: str, lock: Named) -> str:
    """The owner's owner id in a field of a lock's hash."""
    return field.removesuffix(lock._kind.field(""))


Group = tuple[str, str, str]
"""Alias, key template or "", and the prefix of names up to the first colon."""


def group_of(lock: Named) -> Group:
    """The group in which a lock is counted."""
    if template := lock.template:
        return lock.using, template, ""
    return lock.using, "", lock.name[: lock.name.find(":") + 1]
