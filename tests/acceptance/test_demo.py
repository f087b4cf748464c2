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

SMALL = ["--buyers=16", "--stock=12"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.mark.timeout(180)
def test_one_lane_sells_exactly_what_there_is(run: Callable[..., Running]) -> None:
    status, output, errors = (demo := run(*DEMO, "--once")).finish()
    assert (status, errors) == (0, "")
    assert row(output, "@distributed_lock") == [90, 10, 0, 0, 0]
    for lane in ["No lock", "SET NX with an expiry"]:
        sold, sold_out, refused, failed, oversold = row(output, lane)
        assert oversold == sold - 90 > 0
        assert (sold + sold_out, refused, failed) == (100, 0, 0)
    assert demo.left() == set()


@pytest.mark.timeout(120)
def test_two_serve_at_once_until_they_are_told_to_stop(run: Callable[..., Running]) -> None:
    demos = [run(*DEMO, *SMALL) for _ in range(2)]
    urls = [_url(demo.read_until("Ctrl-C")) for demo in demos]
    for demo, url, number in zip(demos, urls, [signal.SIGINT, signal.SIGTERM], strict=True):
        with urllib.request.urlopen(url) as answer:
            assert b"Flash sale" in answer.read()
        demo.process.send_signal(number)
        status, output, errors = demo.finish()
        assert (status, errors) == (0, "")
        assert row(output, "@distributed_lock") == [12, 4, 0, 0, 0]
        assert re.search(r"user admin, password \S{16}$", output, re.MULTILINE)
        assert demo.left() == set()


def _url(output: str) -> str:
    url = re.search(r"^Shop +(\S+)", output, re.MULTILINE)
    assert url is not None
    return url[1]


@pytest.mark.timeout(120)
def test_stopped_before_the_sale_is_over(run: Callable[..., Running]) -> None:
    demo = run(*DEMO)
    demo.read_until("Ready")
    demo.process.send_signal(signal.SIGINT)
    status, _output, errors = demo.finish()
    assert (status, errors) == (130, "Stopped before the sale was over.\n")
    assert demo.is_gone()


@pytest.mark.timeout(120)
def test_a_killed_demo_takes_all_with_it(run: Callable[..., Running]) -> None:
    demo = run(*DEMO)
    demo.read_until("Ready")
    assert len(demo.processes()) > 8  # itself, three watchers, the server, three for the site, four for the worker
    demo.process.kill()
    demo.finish()
    assert demo.is_gone(), demo.left()


def test_says_why_the_site_does_not_start(run: Callable[..., Running]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        demo = run(*DEMO, "--once", f"--port={taken.getsockname()[1]}")
        status, _output, errors = demo.finish()
    assert status == 1
    assert re.search(r"The site ended at once\. Its log:.*in use", errors, re.DOTALL)
    assert demo.left() == set()
