"""What servers' errors mean; their texts are those of Redis 6.2 and 7, outside of scripts and within."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock._core.errors import ends_connection, is_demotion, is_final, meaning_of
from django_rlock._core.foreign import server_error
from django_rlock._transport.calls import unavailable

IN_62 = "ERR Error running script (call to f_caeeee01384f6b04384c56d69c27aa65287fb306): @user_script:1: "
IN_7 = " script: caeeee01384f6b04384c56d69c27aa65287fb306, on @user_script:1."
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
REPLICA = "READONLY You can't write against a read only replica."
FULL = "OOM command not allowed when used memory > 'maxmemory'."
FEW = "NOREPLICAS Not enough good replicas to write."
NO_PASSWORD_THERE = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration "
    "is correct?"
)
RIGHTS = "The user executing the script can't access at least one of the keys mentioned in the command arguments"

TABLE = [
    ("NOAUTH Authentication required.", "connection", "never", "credentials"),
    ("WRONGPASS invalid username-password pair or user is disabled.", "connection", "never", "credentials"),
    (NO_PASSWORD_THERE, "connection", "never", "credentials"),
    ("ERR invalid password", "connection", "never", "credentials"),
    ("ERR Protocol error: unauthenticated multibulk length", "connection", "never", "credentials"),
    ("ERR Protocol error: unauthenticated bulk length", "connection", "never", "credentials"),
    ("DENIED Redis is running in protected mode because protected mode is enabled", "connection", "never", "protected"),
    ("ERR DB index is out of range", "connection", "never", "database"),
    ("ERR SELECT is not allowed in cluster mode", "connection", "never", "database"),
    (REPLICA, "server", "elsewhere", "primary"),
    (REPLICA + IN_7, "server", "elsewhere", "primary"),
    (f"{IN_62}@user_script: 1: -{REPLICA}", "server", "elsewhere", "primary"),
    ("MASTERDOWN Connection with MASTER is down.", "server", "elsewhere", "primary"),
    ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", "server",
     "elsewhere", "primary"),
    ("ERR WAIT cannot be used with replica instances.", "server", "elsewhere", "primary"),
    ("LOADING Redis is loading the dataset in memory", "server", "here", "loaded"),
    ("BUSY Redis is busy running a script.", "server", "here", "SCRIPT KILL"),
    (FEW + IN_7, "server", "here", "replicas"),
    (f"{IN_62}@user_script: 1: -{FEW}", "server", "here", "replicas"),
    ("ERR max number of clients reached", "server", "here", "maxclients"),
    ("CLUSTERDOWN Hash slot not served", "server", "here", "slots"),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "server", "here", "slots"),
    ("MOVED 12905 127.0.0.1:57601", "server", "never", "ConnectionFactory"),
    ("ASK 12905 127.0.0.1:57601", "server", "never", "ConnectionFactory"),
    (FULL + IN_7, "server", "never", "maxmemory"),
    (f"{IN_62}@user_script: 1: -{FULL}\r\n", "server", "never", "maxmemory"),
    ("MISCONF Redis is configured to save RDB snapshots, but is unable to persist to disk.", "server", "never", "disk"),
    (WRONG_TYPE + IN_7, "key", "never", "another name"),
    (IN_62 + WRONG_TYPE, "key", "never", "another name"),
    ("NOPERM this user has no permissions to access one of the keys used as arguments", "rights", "never", "ACL"),
    (f"ERR {RIGHTS}{IN_7}", "rights", "never", "ACL"),
    (f"{IN_62}@user_script: 1: {RIGHTS}", "rights", "never", "ACL"),
    ("CROSSSLOT Keys in request don't hash to the same slot", "command", "never", "braces"),
    ("ERR unknown command `EVALSHA`, with args beginning with: ", "command", "never", "rename-command"),
    ("ERR Unknown command 'EVALSHA'", "command", "never", "rename-command"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "about", "retry", "advice"), TABLE)
def test_each_has_its_meaning(text: str, about: str, retry: str, advice: str) -> None:
    error = server_error(text)
    meaning = meaning_of(error)
    assert meaning is not None
    assert (meaning.about, meaning.retry) == (about, retry)
    assert is_final(error) == (retry == "never")
    assert ends_connection(error) == (about == "connection" or retry == "elsewhere")
    assert is_demotion(error) == (retry == "elsewhere")
    assert advice in unavailable("stock:42", error).advice
    assert unavailable("stock:42", error).advice.startswith("Nothing was changed; ")


def test_others_are_refusals() -> None:
    for text in ("ERR value is not an integer or out of range", "NEVERSEEN of a server to come"):
        error = server_error(text)
        assert is_final(error)
        assert not ends_connection(error)


def test_what_no_server_said_is_no_refusal() -> None:
    for error in (RedisConnectionError("NOAUTH is what it might have said"), RedisError("x"), OSError("x")):
        assert meaning_of(error) is None
        assert not is_final(error)
    assert ends_connection(RedisConnectionError("Connection reset by peer"))
