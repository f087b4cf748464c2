"""A lock for which hundreds wait: which processes they are of, and the operator's button above them all."""

import json
from io import StringIO

import pytest
import redis
from django.core.management import call_command
from django.test import Client

from tests.console.crowd import plant_locks, plant_waiters
from tests.console.pages import JSON, detail, text
from tests.console.reporting import held


@pytest.fixture
def _two_hundred_wait(redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    plant_waiters(redis_client, "stock:0", [30, 169, 1])


def printed(*args: str) -> str:
    out = StringIO()
    call_command("rlock_info", *args, stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("_two_hundred_wait")
def test_waiters_are_counted_by_process(operator: Client) -> None:
    info = held("stock:0")
    assert (info.waiting, len(info.waiters)) == (200, 100)
    crowds = [(crowd.host, crowd.count, crowd.doing) for crowd in info.crowds]
    assert crowds == [("shop-1", 169, "POST /buy/0/"), ("shop-0", 30, "POST /buy/0/"), ("shop-2", 1, "POST /buy/0/")]
    assert [round(crowd.waited or 0, -1) for crowd in info.crowds] == [990, 1000, 980]
    page = text(operator, detail("stock:0"))
    assert page.index("Force release …") < page.index("200 waiters") < page.index("Waiters in order")
    assert page.index("shop-1") < page.index("shop-0") < page.index("shop-2")
    assert "Only the first 100 are shown." in page


@pytest.mark.usefixtures("_two_hundred_wait")
def test_the_command_counts_them_too_and_lists_the_first() -> None:
    lines = printed("stock:0").splitlines()
    [start] = [number for number, line in enumerate(lines) if line.startswith("WAITING PROCESS")]
    assert [line.split()[:3] for line in lines[start + 1 : start + 4]] == [
        ["shop-1", "2001", "169"],
        ["shop-0", "2000", "30"],
        ["shop-2", "2002", "1"],
    ]
    assert sum("thread" in line for line in lines) == 10
    assert "and 190 more" in lines


@pytest.mark.usefixtures("_two_hundred_wait")
def test_a_browser_gets_no_whole_id_of_a_waiting_process(operator: Client) -> None:
    answer = operator.get(JSON).json()["locks"][0]
    assert [crowd["count"] for crowd in answer["crowds"]] == [169, 30, 1]
    assert len(answer["crowds"][0]["client"]) == 8
    assert held("stock:0").crowds[0].client not in json.dumps(answer)


def test_waiters_of_a_process_each_stand_for_themselves(operator: Client, redis_client: redis.Redis) -> None:
    plant_locks(redis_client, 1, 1)
    plant_waiters(redis_client, "stock:0", [1, 1])
    assert held("stock:0").crowds == ()
    page = text(operator, detail("stock:0"))
    assert "Waiters in order" not in page
    assert page.index("shop-0") < page.index("shop-1")
