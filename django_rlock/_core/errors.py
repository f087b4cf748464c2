"""The meanings of a server's errors: one table for all bindings and topologies, the background threads and the doctor.

An error is looked up by its code, the first word of its text, for which redis-py may have a class; or by a part of its
text, if its code is only ERR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from redis import exceptions as theirs
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

About = Literal["connection", "server", "key", "rights", "command"]
Retry = Literal["here", "elsewhere", "never"]


class Meaning(NamedTuple):
    """The subject of an error, and where a second try may succeed: at the same server, once it has changed its state;
    over a new connection, which may lead to another server; or never. ``advice`` says what to do, and ``text`` what has
    happened, if the server's own text does not; ``{noun}`` stands for the requested object, usually a lock.
    """

    about: About
    retry: Retry
    advice: str | None = None
    text: str | None = None

    @property
    def ends_connection(self) -> bool:
        """Whether the connection that brought it is of no more use."""
        return self.about == "connection" or self.retry == "elsewhere"

    @property
    def is_of_command(self) -> bool:
        """Whether the server refuses the command itself, and would do so over another connection."""
        return self.about in {"rights", "command"}

    @property
    def is_demotion(self) -> bool:
        """Whether the server has become a replica: then connections to it are useless."""
        return self.about == "server" and self.retry == "elsewhere"


_NO_LOGIN = Meaning("connection", "never", "Check the credentials and the ACL of the Redis user.")
_NO_RIGHT = Meaning("rights", "never", _NO_LOGIN.advice)
_REPLICA = Meaning("server", "elsewhere", "Name the primary in CACHES, or sentinels that know which server it is.")
_OTHER_NODE = Meaning(
    "server",
    "never",
    "This server is a node of a Redis Cluster. Set OPTIONS['CONNECTION_FACTORY'] of its entry in "
    "CACHES to 'django_rlock.cluster.ConnectionFactory'.",
    text="another node of the cluster has the key",
)
_NO_CLUSTER = Meaning("server", "here", "Check the nodes of the cluster, and their slots.")

MEANINGS: dict[str, Meaning] = {
    "NOAUTH": _NO_LOGIN,
    "WRONGPASS": _NO_LOGIN,
    "NOPERM": _NO_RIGHT,
    "DENIED": Meaning("connection", "never", "The server is in protected mode: give it a password, or bind it."),
    "READONLY": _REPLICA,
    "MASTERDOWN": _REPLICA,
    "UNBLOCKED": _REPLICA,
    "LOADING": Meaning("server", "here", "Wait until the server has loaded its data."),
    "BUSY": Meaning("server", "here", "End the slow script with SCRIPT KILL, a slow function with FUNCTION KILL."),
    "NOREPLICAS": Meaning("server", "here", "Check the server's replicas, or lower min-replicas-to-write."),
    "MAXCLIENTS": Meaning("server", "here", "Raise the server's maxclients, or use fewer clients."),
    "CLUSTERDOWN": _NO_CLUSTER,
    "TRYAGAIN": Meaning(
        "server",
        "here",
        "Wait until the slots have moved. If that takes long, a move was interrupted: run redis-cli --cluster fix.",
    ),
    "MOVED": _OTHER_NODE,
    "ASK": _OTHER_NODE,
    "OOM": Meaning(
        "server",
        "never",
        "Raise maxmemory or free some, and keep locks away from a full cache.",
    ),
    "MISCONF": Meaning("server", "never", "The server cannot save its data: look into its log, and at its disk."),
    "WRONGTYPE": Meaning(
        "key",
        "never",
        "Use another name or KEY_PREFIX, or delete that key yourself.",
        text="the key under its name holds another type of value, not a {noun}",
    ),
    "NODB": Meaning(
        "connection", "never", "Name a database in CACHES that the server has; a cluster of Redis has only 0."
    ),
    "CROSSSLOT": Meaning(
        "command", "never", "Leave braces out of the names, or close them around what the names share."
    ),
    "NOWAIT": Meaning("command", "never", "Set REPLICA_ACKS to 0, or use a server that has WAIT."),
    "UNKNOWN": Meaning(
        "command",
        "never",
        "A proxy or rename-command withholds this command, or the server is older than Redis 6.2.",
    ),
}
"""By code. MAXCLIENTS, NODB, NOWAIT and UNKNOWN are names of ours."""

_CODES: dict[type[RedisError], str] = {
    theirs.AuthenticationError: "NOAUTH",
    theirs.AuthenticationWrongNumberOfArgsError: "NOAUTH",
    theirs.BusyLoadingError: "LOADING",
    theirs.MasterDownError: "MASTERDOWN",  # before its base class
    theirs.ClusterDownError: "CLUSTERDOWN",
    theirs.ClusterCrossSlotError: "CROSSSLOT",
    theirs.MovedError: "MOVED",
    theirs.AskError: "ASK",
    theirs.NoPermissionError: "NOPERM",
    theirs.OutOfMemoryError: "OOM",
    theirs.ReadOnlyError: "READONLY",
    theirs.TryAgainError: "TRYAGAIN",
}
"""The codes that redis-py takes out of the text, by its classes."""

_TOLD: dict[str, str] = {
    "max number of clients": "MAXCLIENTS",
    "The user executing the script can't": "NOPERM",
    "WAIT cannot be used with replica": "READONLY",
    "DB index is out of range": "NODB",
    "SELECT is not allowed in cluster mode": "NODB",
    "unauthenticated": "NOAUTH",  # for a command of more than ten words, before it is looked at
    "nknown command 'WAIT'": "NOWAIT",
    "nknown command `WAIT`": "NOWAIT",
    "nknown command": "UNKNOWN",
}
"""Codes by a part of the text of errors without an own code."""

_OTHER = Meaning("command", "never")


def meaning_of(error: BaseException) -> Meaning | None:
    """The meaning of an error; None if no server has sent it."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return MEANINGS[code]
    text = str(error)
    code = text.partition(" ")[0]
    if isinstance(error, ResponseError) and code in MEANINGS:
        return MEANINGS[code]
    for part, code in _TOLD.items():
        if part in text:
            return MEANINGS[code]
    return _OTHER if isinstance(error, ResponseError) else None


def is_final(error: BaseException) -> bool:
    """Whether retrying cannot help, because the server understood the call and refused it."""
    meaning = meaning_of(error)
    return meaning is not None and meaning.retry == "never"


def clearer(failure: Exception, earlier: Exception) -> Exception:
    """Which of two failures of a call says more about the reason; the later one, if both say as much.

    The last try often has too little time for a reply, though the server has said before why it refuses the call.
    """
    return earlier if _clarity(failure) < _clarity(earlier) else failure


def _clarity(failure: Exception) -> int:
    if isinstance(failure, RedisTimeoutError | NoScriptError):
        return 0
    return 1 if meaning_of(failure) is None and not is_down(failure) else 2


def ends_connection(error: BaseException) -> bool:
    """Whether the connection that brought this error, or broke with it, is of no more use."""
    meaning = meaning_of(error)
    return isinstance(error, theirs.ConnectionError) if meaning is None else meaning.ends_connection


def is_reply_that_ends_connection(reply: Any) -> bool:
    """Whether it is a server's error after which the connection is of no more use: the command was refused."""
    meaning = meaning_of(reply) if isinstance(reply, RedisError) else None
    return meaning is not None and meaning.ends_connection


def is_demotion(error: BaseException) -> bool:
    """Whether the server has become a replica. Behind sentinels another server is the primary now."""
    meaning = meaning_of(error)
    return meaning is not None and meaning.is_demotion


def connection_end_in(replies: Sequence[Any]) -> RedisError | None:
    """The first error among replies after which their connection is of no more use."""
    return next((reply for reply in replies if isinstance(reply, RedisError) and ends_connection(reply)), None)


FILE_ADVICE = "Restore this file, or correct its path and its rights in the ssl_… options of CACHES."


def unreadable_in(error: BaseException | None) -> OSError | None:
    """The error of a file with a certificate or key that cannot be read, if that is why connecting failed."""
    while error is not None:
        if isinstance(error, OSError) and error.filename is not None:  # sockets' errors name no file
            return error
        error = error.__cause__ or error.__context__
    return None


def is_down(error: BaseException | None) -> bool:
    """Whether nothing listens at the server's address."""
    if unreadable_in(error):
        return False
    while error is not None:
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):  # the latter for a unix socket
            return True
        error = error.__cause__ or error.__context__
    return False
