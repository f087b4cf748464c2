"""An error gives the reason that the server gave, although the last try had too little time for a reply."""

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from pytest_django import Settings
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_rlock import FairLock, LockUnavailableError, PermitExpirableSemaphore, RLock, Semaphore, rlock
from django_rlock._core.errors import clearer
from django_rlock._core.foreign import server_error
from django_rlock._core.text import reason_of
from django_rlock._transport import async_pool, calls, pool
from django_rlock.exceptions import QuorumNotReachedError
from django_rlock.locks.counters import is_refusal
from tests.answering import command_in, serving
from tests.conftest import _use

BUSY = "BUSY Redis is busy running a script."
FEW = "NOREPLICAS Not enough good replicas to write."
FULL = "OOM command not allowed when used memory > 'maxmemory'."
LOADING = "LOADING Redis is loading the dataset in memory"


def refusing_once(error: str, number: int) -> Callable[[socket.socket], None]:
    """Refuses the first script, never replies to another one, and replies to all other commands."""
    refusals = iter([error])

    def answer(client: socket.socket) -> None:
        stream = client.makefile("rb")
        while (words := command_in(stream)) is not None:
            if words[0] == b"INFO":
                client.sendall(b"$8\r\nrun_id:%d\r\n" % number)
            elif not words[0].startswith(b"EVAL"):
                client.sendall(b"+OK\r\n")
            elif refusal := next(refusals, None):
                client.sendall(f"-{refusal}\r\n".encode())

    return answer


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (calls, pool, async_pool):
        monkeypatch.setattr(module, "REPLY_GRACE", 0.1)


@pytest.fixture
def refused(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Has the server refuse the first script with an error."""
    with ExitStack() as stack:
        yield lambda error: _use(settings, "default", stack.enter_context(serving(refusing_once(error, 0))))


async def reason(binding: Any, obj: Any, **options: Any) -> LockUnavailableError:
    with pytest.raises(LockUnavailableError) as caught:
        await binding.call(obj, "acquire", **options)
    return caught.value


@pytest.mark.parametrize("wait", [0, 0.2])
@pytest.mark.parametrize("error", [BUSY, FEW, FULL, LOADING])
async def test_the_server_has_said_why_before_it_fell_silent(binding, refused, error, wait):
    refused(error)
    caught = await reason(binding, RLock("stock:42"), wait_time=wait)
    assert caught.reason == reason_of(server_error(error))  # redis-py takes the code out of some
    assert caught.advice.startswith("Nothing was changed; ")


@pytest.mark.parametrize("make", [FairLock, partial(rlock, "b"), Semaphore, PermitExpirableSemaphore])
async def test_other_kinds(binding, refused, make):
    refused(BUSY)
    assert (await reason(binding, make("stock:42"), wait_time=0.1)).reason == BUSY.rstrip(".")


async def test_a_refusal_before_an_unknown_outcome_is_no_refusal(binding, refused):
    """It came once, and the server may have executed the last try: a permit that was taken then is released."""
    refused(FULL)
    assert not is_refusal(await reason(binding, Semaphore("seats"), wait_time=0))


async def test_nodes_of_a_redlock(binding, settings):
    with ExitStack() as stack:
        nodes = [stack.enter_context(serving(refusing_once(BUSY, number))) for number in range(3)]
        settings.RLOCK = {"quorum": {"NODES": nodes, "QUARANTINE": 0, "NODE_TIMEOUT": 0.1}}
        with pytest.raises(QuorumNotReachedError) as caught:
            await binding.acquire(rlock("stock:42", using="quorum"), wait_time=0.3)
    assert [str(error) for error in caught.value.errors.values()] == [BUSY] * 3


def refusal_of_connections() -> RedisConnectionError:
    error = RedisConnectionError("Error connecting to the server")
    error.__cause__ = ConnectionRefusedError()
    return error


def test_which_failure_is_clearer() -> None:
    silence, loss = RedisTimeoutError("Timeout reading"), RedisConnectionError("Connection closed by server.")
    certificate = RedisConnectionError("certificate verify failed")
    ranks: list[list[Exception]] = [
        [silence, NoScriptError("No matching script.")],
        [loss, certificate],
        [server_error(BUSY), server_error(FEW), ResponseError("of a server to come"), refusal_of_connections()],
    ]
    for rank, lower in itertools.product(range(3), range(3)):
        for error, other in itertools.product(ranks[rank], ranks[lower]):
            assert clearer(error, other) is (error if rank >= lower else other)
