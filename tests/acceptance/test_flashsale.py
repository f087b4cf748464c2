"""``manage.py flashsale``: real buyers over HTTP, and an exit status that a build can use."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.acceptance.conftest import Shop
from tests.acceptance.running import MANAGE, Running
from tests.forms import long


@pytest.mark.thorough
def test_needs_nothing_but_itself(run: Callable[..., Running]) -> None:
    sale = run(*MANAGE, "flashsale", "--buyers=24", "--stock=10", "--lane=locked", "--json")
    status, output, errors = sale.finish()
    assert (status, errors) == (0, "")
    (result,) = json.loads(output)
    assert result.pop("seconds") > 0
    assert result == {
        "lane": "locked",
        "buyers": 24,
        "stock": 10,
        "sold": 10,
        "sold_out": 14,
        "refused": 0,
        "errors": 0,
        "oversold": 0,
    }
    assert sale.left() == set()


def test_more_cakes_than_buyers_suit_everybody(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--buyers=10", "--stock=20", "--strict", "--lane=locked", "--lane=database", "--json"]
    assert shop.stack.manage("flashsale", f"--url={shop.url}", *options) == 0
    for result in json.loads(capfd.readouterr().out):
        assert (result["sold"], result["sold_out"], result["oversold"]) == (10, 0, 0)


@pytest.mark.thorough  # as test_demo.py in one sale
@pytest.mark.parametrize("lane", ["locked", "database"])
def test_sells_exactly_what_there_is(shop: Shop, capfd: pytest.CaptureFixture[str], lane: str) -> None:
    options = ["--buyers=48", "--stock=43", "--strict", f"--lane={lane}", "--json"]
    assert shop.stack.manage("flashsale", f"--url={shop.url}", *options) == 0
    (result,) = json.loads(capfd.readouterr().out)
    assert (result["sold"], result["sold_out"], result["oversold"]) == (43, 5, 0)


@pytest.mark.parametrize("lane", ["naive", *long("none", "paused")])
def test_fails_on_oversell(shop: Shop, capfd: pytest.CaptureFixture[str], lane: str) -> None:
    options = ["--buyers=48", "--stock=43", "--strict", f"--lane={lane}", "--json"]
    assert shop.stack.manage("flashsale", f"--url={shop.url}", *options) == 1
    printed = capfd.readouterr()
    (result,) = json.loads(printed.out)
    assert result["oversold"] == result["sold"] - 43 > 0
    assert "wrong" in printed.err


@pytest.mark.thorough
def test_shows_the_broken_lanes_without_failing_for_them(shop: Shop) -> None:
    options = ["--buyers=30", "--stock=20", "--lane=none"]
    assert shop.stack.manage("flashsale", f"--url={shop.url}", *options) == 0


@pytest.mark.parametrize("lane", ["locked", *long("database")])
def test_fails_when_nobody_gets_an_answer(shop: Shop, capfd: pytest.CaptureFixture[str], lane: str) -> None:
    nobody = "http://127.0.0.1:9"  # discard, which no one serves
    options = ["--buyers=3", "--stock=2", f"--lane={lane}", "--json"]
    assert shop.stack.manage("flashsale", f"--url={nobody}", *options) == 1
    (result,) = json.loads(capfd.readouterr().out)
    assert (result["sold"], result["errors"]) == (0, 3)
