"""A signal's handler raises somewhere in a link of a loop, which logs that and goes on: no task waits for ever."""

import asyncio
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from itertools import chain, count
from types import FrameType
from typing import NamedTuple, TypeVar, cast

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from django_rlock import RLock
from django_rlock._core.threads import Alive
from django_rlock._redis.scripts import OK, RLOCK_ACQUIRE
from django_rlock._transport.async_connection import TaskConnection
from django_rlock._transport.async_pool import TASKS, LoopConnections, connections_of
from django_rlock._transport.calls import pack_command
from django_rlock._transport.connection import Connection, ConnectionSlot, ErrorReply, Expected
from django_rlock._transport.servers import server
from tests.eventually import UNTIL_SERVED, eventually
from tests.faults.opcode_bindings import IN_ASYNCIO
from tests.faults.opcode_watch import watch_opcodes
from tests.faults.opcodes import MISSES, SPARED, Aim
from tests.forms import THOROUGH, first_place

# A link in the frames of what was interrupted is part of a circle, and closed with it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

NONCES = b"100000000000001", b"100000000000002"
REPLIES = [(nonce, RLOCK_ACQUIRE) for nonce in NONCES]
COMMAND = bytes(range(256)) * 4_000
"""More than a socket accepts at once."""
LIMIT = 3_600.0
STRIDE = 1 if THOROUGH else 4
"""For what takes long: so many runs of the suite with consecutive seeds meet every place."""


class LimitError(Exception):
    """As Celery's soft time limit, which is no BaseException either."""


def strike() -> None:
    raise LimitError


Ends = tuple[TaskConnection, socket.socket]


@pytest.fixture
def new_ends() -> Iterator[Callable[[], Ends]]:
    """Makes links, each with the server's end of its connection, in a loop."""
    loop = asyncio.new_event_loop()
    made: list[Ends] = []

    def make() -> Ends:
        ours, servers = socket.socketpair()
        servers.setblocking(False)
        link = TaskConnection(Connection(ours), loop)
        link.attach()
        made.append((link, servers))
        return made[-1]

    with closing(loop):
        yield make
        for link, servers in made:
            link.break_off(RedisConnectionError("the test has ended"))
            servers.close()


Made = TypeVar("Made")


def struck(prepare: Callable[[], Made], act: Callable[[Made], object]) -> Iterator[Made]:
    """What was prepared for an act, each time after another opcode of the act was interrupted."""
    for at in count(1):
        made = prepare()
        aim = Aim(strike)
        with suppress(LimitError):
            try:
                aim.begin(at)
                act(made)
            finally:
                aim.end()
        if not aim.place:
            return
        yield made


class Asked(NamedTuple):
    """Two commands that were sent over a link, and the server's end of it."""

    link: TaskConnection
    servers: socket.socket
    answers: list[asyncio.Future[object]]


def ask_twice(new_ends: Callable[[], Ends], reply: bytes = b"", limits: tuple[float, float] = (LIMIT, LIMIT)) -> Asked:
    link, servers = new_ends()
    asked = [link.ask(b"PING", expected, limit) for expected, limit in zip(REPLIES, limits, strict=True)]
    servers.sendall(reply)
    return Asked(link, servers, asked)


def ends_of(asked: list[asyncio.Future[object]]) -> list[object]:
    answers = asyncio.gather(*asked)
    return answers.get_loop().run_until_complete(answers)


def test_reading(new_ends: Callable[[], Ends]) -> None:
    replies = b"".join(b"$15\r\n%b\r\n" % nonce for nonce in NONCES)
    for asked in struck(lambda: ask_twice(new_ends, replies), lambda asked: asked.link.read()):
        for answer, nonce in zip(ends_of(asked.answers), NONCES, strict=True):
            assert answer == [nonce, OK] or isinstance(answer, RedisConnectionError)


def arrived(link: TaskConnection, servers: socket.socket) -> bytes:
    """All that reaches the server over a link that is open, else nothing."""
    found = bytearray()
    while link.is_open:
        with suppress(BlockingIOError):
            while data := servers.recv(1_000_000):
                found += data
        if not link._unsent:
            break
        link.loop.run_until_complete(asyncio.sleep(0))
    return bytes(found)


def test_beginning_to_write(new_ends: Callable[[], Ends]) -> None:
    for ends in struck(new_ends, lambda ends: ends[0].ask(COMMAND, REPLIES[0], LIMIT)):
        assert arrived(*ends) in {b"", COMMAND}


def test_writing_on(new_ends: Callable[[], Ends]) -> None:
    def prepare() -> tuple[Ends, bytes]:
        link, servers = new_ends()
        link.ask(COMMAND, REPLIES[0], LIMIT)
        return (link, servers), servers.recv(100_000)

    for ends, before in struck(prepare, lambda made: made[0][0]._on_writable()):
        assert before + arrived(*ends) == COMMAND or not ends[0].is_open


def test_asking(new_ends: Callable[[], Ends]) -> None:
    """The others still have time limits."""
    for link, _ in struck(new_ends, lambda ends: ends[0].ask(b"PING", REPLIES[0], 0)):
        if link.is_open:
            assert isinstance(ends_of([link.ask(b"PING", REPLIES[1], 0)])[0], RedisError)


Asking = Coroutine[object, None, list[object]]
USES: dict[str, Callable[[TaskConnection, Asking], object]] = {
    "ask": lambda link, _: link.ask(b"PING", REPLIES[0], LIMIT),
    "ask_all": lambda _, asking: asking.send(None),
    "send": lambda link, _: link.send(b"PING", REPLIES[0], link.loop.create_future()),
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("use", USES)
def test_error_goes_to_the_command_that_it_answers(new_ends: Callable[[], Ends], use: str) -> None:
    """A server's error echoes no nonce: a slot whose command was never sent would take it."""

    def prepare() -> tuple[TaskConnection, socket.socket, Asking]:
        link, servers = new_ends()
        return link, servers, link.ask_all(b"PING", 1, LIMIT)

    for link, servers, _ in struck(prepare, lambda made: USES[use](made[0], made[2])):
        if link.is_open:
            asked = link.ask(b"PING", REPLIES[1], 1)
            servers.sendall(b"-BUSY\r\n" * arrived(link, servers).count(b"PING"))
            assert repr(ends_of([asked])[0]) == repr(ErrorReply("BUSY"))


def test_looking_for_late_replies(new_ends: Callable[[], Ends]) -> None:
    def prepare() -> Asked:
        asked = ask_twice(new_ends, limits=(0, 0.001))
        asked.link.heard_at += 1  # so that the connection is not given up
        asked.link._timers[0].cancel()  # it goes off now
        return asked

    for asked in struck(prepare, lambda asked: asked.link._look()):
        assert all(isinstance(end, RedisError) for end in ends_of(asked.answers))


def is_read(loop: asyncio.AbstractEventLoop, fileno: int) -> bool:
    """Whether a loop reads a socket, or it may think so of the next socket with that number."""
    return fileno in cast("asyncio.SelectorEventLoop", loop)._selector.get_map()  # type: ignore[attr-defined]


LOST = RedisConnectionError("the server is gone")


@pytest.mark.parametrize("is_ours", [False, True], ids=["by a wrong reply", "by a caller"])
def test_ending(new_ends: Callable[[], Ends], is_ours: bool) -> None:
    """All that waits gets the error, and nothing stays behind in the loop."""

    def end(asked: Asked) -> None:
        asked.link.break_off(LOST) if is_ours else asked.link.read()

    for asked in struck(lambda: ask_twice(new_ends, b"+PONG\r\n"), end):
        link = asked.link
        if is_ours and link.is_open:  # interrupted before it began: it is still a good link
            link.break_off(LOST)
        assert all(isinstance(end, RedisConnectionError) for end in ends_of(asked.answers))
        assert not is_read(link.loop, link.fileno)


def test_error_that_tasks_share_keeps_no_frames_of_others() -> None:
    """They refer to locks and waiters, which are over when nothing refers to them."""
    asyncio.run(share_an_error())


async def share_an_error() -> None:
    node, links = server("default"), connections_of(asyncio.get_running_loop())
    call = RLock("x")._kind.state(RLock("x"), "")

    async def ask() -> None:
        with pytest.raises(RedisConnectionError):
            await TASKS.exchange(node, call, pack_command("PING"), NONCES[0], LIMIT)

    link = await links.get(node, LIMIT)
    asked = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.sleep(0)
    link.break_off(LOST)
    await asyncio.gather(*asked)
    assert [frame.f_code.co_name for frame, _ in traceback.walk_tb(LOST.__traceback__)] == ["ask", "exchange"]


def test_ending_twice(new_ends: Callable[[], Ends]) -> None:
    """The number of its socket may be that of another one meanwhile."""
    (link, _), (other, servers) = new_ends(), new_ends()
    link.break_off(LOST)
    os.dup2(other.fileno, link.fileno)
    following = TaskConnection(Connection(socket.socket(fileno=link.fileno)), link.loop)
    following.attach()
    link.break_off(LOST)
    answer = following.ask(b"PING", REPLIES[0], LIMIT)
    other.loop.remove_reader(other.fileno)
    servers.sendall(b"*2\r\n$15\r\n%b\r\n:1\r\n" % NONCES[0])
    assert link.loop.run_until_complete(answer) == [NONCES[0], 1]
    following.break_off(LOST)


@pytest.mark.parametrize("use", [TaskConnection.attach, TaskConnection.give])
def test_use_by_one_who_breaks_it_off(new_ends: Callable[[], Ends], use: Callable[[TaskConnection], object]) -> None:
    """After an interruption, its user breaks the link off: nothing stays in the loop."""

    def prepare() -> TaskConnection:
        link, _ = new_ends()
        if use is TaskConnection.attach:
            link._detach()
        return link

    for link in struck(prepare, use):
        link.break_off(RedisConnectionError("its use was interrupted"))
        assert not is_read(link.loop, link.fileno)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Python's, between two of its opcodes
@pytest.mark.usefixtures("brief_collections")
def test_opening() -> None:
    """The next task gets a link that is open."""
    for at in count(1):
        if asyncio.run(has_opened(at)):
            break


async def has_opened(at: int) -> bool:
    """Whether nothing is interrupted there."""
    links, left, node = LoopConnections(asyncio.get_running_loop()), count(at - 1, -1), server("default")
    places = {each.__code__ for each in (LoopConnections.get, LoopConnections._open, TaskConnection.attach)}

    def meet(frame: FrameType, has_called: bool) -> None:
        code = frame.f_code
        if code in places and (has_called or code.co_code[frame.f_lasti] not in SPARED) and not next(left):
            raise LimitError

    watch_opcodes(meet)
    try:
        ended, _ = await asyncio.wait({asyncio.ensure_future(links.get(node, LIMIT))})
    finally:
        watch_opcodes(None)
    is_struck = ended.pop().exception() is not None
    await links.get(node, LIMIT)
    await asyncio.gather(*[opening for opening, _ in links._opening.values()])
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        await task  # one that was begun, and interrupted before that was noted
    gc.collect()
    # Otherwise there is a connection that nobody uses. The thread that opens one for an interrupted call ends later.
    eventually(lambda: node.size == len(links.shared) + len(node.idle))
    for link in links.shared.values():
        link.break_off(LOST)
    assert (await links.get(node, LIMIT)).is_open
    links.give_back()
    return not is_struck


def test_sleeping() -> None:
    """A signal comes as asyncio.sleep() would have been over."""
    place = asyncio.futures._set_result_unless_cancelled.__code__  # type: ignore[attr-defined]

    def meet(frame: FrameType, _has_called: bool) -> None:
        if frame.f_code is place:
            raise LimitError

    async def sleep() -> None:
        watch_opcodes(meet)
        try:
            _, asleep = await asyncio.wait({asyncio.ensure_future(TASKS.sleep(0.001))}, timeout=UNTIL_SERVED)
        finally:
            watch_opcodes(None)
        assert not asleep

    asyncio.run(sleep())


async def gather() -> None:
    await TASKS.gather([TASKS.sleep(0.001) for _ in range(2)])


async def open_link() -> None:
    await connections_of(asyncio.get_running_loop()).get(server("default"), LIMIT)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("wait", [gather, open_link])
def test_waiting_for_other_tasks(wait: Callable[[], Coroutine[object, None, None]]) -> None:
    """A signal comes inside asyncio's Python code as the others end, and the loop goes on."""
    for at in count(1):
        with closing(asyncio.new_event_loop()) as loop:  # asyncio.run() would wait for the task, too
            is_done = loop.run_until_complete(has_waited(wait, at))
            loop.run_until_complete(loop.shutdown_asyncgens())
        if is_done:
            break


async def has_waited(wait: Callable[[], Coroutine[object, None, None]], at: int) -> bool:
    """Whether nothing is interrupted there."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    left = count(at - 1, -1)
    struck: list[str] = []

    def meet(frame: FrameType, has_called: bool) -> None:
        code = frame.f_code
        if code.co_filename != asyncio.tasks.__file__ or (not has_called and code.co_code[frame.f_lasti] in SPARED):
            return
        if not next(left):
            struck.append(code.co_name)
            raise LimitError

    async def act() -> None:
        watch_opcodes(meet)
        try:
            await wait()
        finally:
            watch_opcodes(None)

    acting = asyncio.ensure_future(act())
    ended, _ = await asyncio.wait({acting}, timeout=UNTIL_SERVED)
    assert ended, struck
    assert struck or acting.exception() is None
    return not struck


@pytest.mark.usefixtures("brief_collections")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("expected", [None, REPLIES[0]], ids=["any reply", "a wrong reply"])
def test_conversation_keeps_no_connection(request: pytest.FixtureRequest, expected: Expected) -> None:
    """Over a link of its own, as for REPLICA_ACKS, in a loop that goes on."""
    asyncio.run(converse_at_opcodes(first_place(request.config, STRIDE), expected))


async def converse_at_opcodes(first: int, expected: Expected) -> None:
    node, misses = server("default"), 0
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    for at in chain([sys.maxsize], count(first, STRIDE)):  # once in full, so that what is made on first use is there
        aim = Aim(strike, lambda code: code.co_filename.startswith(IN_ASYNCIO))
        with suppress(LimitError, RedisError):
            try:
                aim.begin(at)
                await TASKS.converse(node, pack_command("PING"), [expected], LIMIT)
            finally:
                aim.end()
        gc.collect()
        eventually(lambda: node.size == len(node.idle))  # or it would be opened when it is needed no more
        misses = 0 if aim.place or at == sys.maxsize else misses + 1  # it is shorter where a link is there
        if misses == MISSES:
            return


def test_slot_that_ends_as_a_signal_comes_is_free_again() -> None:
    """Python drops what is raised while an object is collected; so nothing may be left to do there."""
    alive = Alive[ConnectionSlot]()
    slot = ConnectionSlot(alive)
    alive.add(slot)
    assert len(alive) == 1
    sys.setprofile(lambda _frame, event, _argument: strike() if event == "call" else None)
    try:
        del slot
    finally:
        sys.setprofile(None)
    assert len(alive) == 0
