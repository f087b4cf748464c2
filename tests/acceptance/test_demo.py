"""``make demo`` from its start to the last file that it removes."""

from __future__ import annotations

import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable

import pytest

from tests.acceptance.running import DEMO, Running, row

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def test_two_lanes_sell_exactly_what_there_is(run: Callable[..., Running]) -> None:
    status, output, errors = (demo := run(*DEMO, "--once")).finish()
    assert (status, errors) == (0, "")
    for lane in ["The database alone", "@distributed_lock"]:
        assert row(output, lane) == [90, 10, 0, 0, 0]
    for lane in ["No lock", "SET NX, short expiry", "SET NX, long expiry"]:
        sold, sold_out, refused, failed, oversold = row(output, lane)
        assert oversold == sold - 90 > 0
        assert (sold + sold_out, refused, failed) == (100, 0, 0)
    assert demo.left() == set()


@pytest.mark.thorough
def test_two_serve_at_once_until_they_are_told_to_stop(run: Callable[..., Running]) -> None:
    demos = [run(*DEMO) for _ in range(2)]
    urls = [_url(demo.read_until("Ctrl-C")) for demo in demos]
    for demo, url, number in zip(demos, urls, [signal.SIGINT, signal.SIGTERM], strict=True):
        with urllib.request.urlopen(url) as answer:
            assert answer.read().count(b"No sale yet") == 5
        demo.process.send_signal(number)
        status, output, errors = demo.finish()
        assert (status, errors) == (0, "")
        assert re.search(r"user admin, password \S{16}$", output, re.MULTILINE)
        assert demo.left() == set()


def _url(output: str) -> str:
    url = re.search(r"^Shop +(\S+)", output, re.MULTILINE)
    assert url is not None
    return url[1]


@pytest.mark.thorough
def test_stopped_before_the_sale_is_over(run: Callable[..., Running]) -> None:
    demo = run(*DEMO, "--once")
    demo.read_until("Ready")
    demo.process.send_signal(signal.SIGINT)
    status, _output, errors = demo.finish()
    assert (status, errors) == (130, "Stopped before it was done.\n")
    assert demo.is_gone()


def test_a_killed_demo_takes_all_with_it(run: Callable[..., Running]) -> None:
    demo = run(*DEMO)
    demo.read_until("Ready")
    assert len(demo.processes()) > 8  # itself, three watchers, the server, three for the site, four for the worker
    demo.process.kill()
    demo.finish()
    assert demo.is_gone(), demo.left()


@pytest.mark.thorough
def test_says_why_the_site_does_not_start(run: Callable[..., Running]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        demo = run(*DEMO, "--once", f"--port={taken.getsockname()[1]}")
        status, _output, errors = demo.finish()
    assert status == 1
    assert re.search(r"The site ended at once\. Its log:.*in use", errors, re.DOTALL)
    assert demo.left() == set()
