"""A lock's timeline in the admin and in ``rlock_info``."""

import json
import re
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.test import Client
from pytest_django import Settings

from django_rlock import rlock
from django_rlock.inspection import force_release
from tests.console.pages import detail, text
from tests.console.past import Past
from tests.console.test_pages import XSS
from tests.console.test_timeline import waiting_for


def happen(past: Past) -> None:
    """A hold, a wait, an attempt that gave up, and a forced release of a lock that is free then."""
    with waiting_for("stock:1"):
        assert not rlock("stock:1", owner="other").acquire(blocking=False)
    rlock("stock:1").acquire()
    force_release("stock:1", reason="stuck <since> noon", by="alice")
    past.written()


def picture(page: str) -> str:
    [drawn] = re.findall(r'(?s)<svg class="rlock-chart".*?\n  </svg>', page)
    return str(drawn)


def test_a_free_lock_has_a_timeline(operator: Client, past: Past) -> None:
    assert "rlock-timeline" not in text(operator, detail("stock:1"))
    happen(past)
    page = text(operator, detail("stock:1"))
    assert "This lock is free." in page
    drawn = picture(page)
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=", drawn)
    assert len(re.findall('class="rlock-bar', drawn)) >= 2
    assert 'class="rlock-queue"' in drawn
    assert 'class="rlock-mark rlock-mark-freed"' in drawn
    for expected in (">waited<", ">gave up<", "alice", "stuck &lt;since&gt; noon", "<bdi>waiter</bdi>"):
        assert expected in page


def test_what_lasts_is_in_the_picture_alone(operator: Client, past: Past) -> None:
    with waiting_for("stock:1"):
        past.written()
        page = text(operator, detail("stock:1"))
    assert "rlock-bar-now" in picture(page)
    assert "gave up" not in page


@pytest.mark.parametrize("language", ["en", "de", "ar"])
def test_the_picture_is_well_formed_in_each_language(
    operator: Client, past: Past, settings: Settings, language: str
) -> None:
    happen(past)
    settings.LANGUAGE_CODE = language
    settings.USE_THOUSAND_SEPARATOR = True
    drawn = picture(text(operator, detail("stock:1")))
    assert not re.search(r' (?:x|y|width|height|x1|x2)="(?![\d.]+%?")', drawn)
    assert 'aria-describedby="rlock-figures"' in drawn
    starts = [float(x) for x in re.findall(r'rlock-bar[^>]* x="([\d.]+)%', drawn)]
    assert all(x < 50 for x in starts) is (language == "ar")


@pytest.mark.parametrize("payload", [*XSS, "x" * 100_000, "\ud800"], ids=lambda payload: repr(payload[:20]))
def test_nothing_from_redis_becomes_markup(operator: Client, redis_client: redis.Redis, payload: str) -> None:
    now = redis_client.time()[0]
    about = {"place": payload, "context": {"route": payload, "task_id": payload}, "at": now, "seconds": 1}
    about |= dict.fromkeys(("by", "reason", "owner", "whom", "using", "name"), payload)
    spans = [
        {**about, "what": what, "failed": failed} for what in ("hold", "wait", "freed") for failed in (True, False)
    ]
    fields: Any = {
        "lock rlock:stock:1": json.dumps(spans),
        **dict.fromkeys(("host", "pid", "role"), payload.encode(errors="replace")),
    }
    redis_client.hset("rlock_history:x", mapping=fields)
    redis_client.zadd("rlock_histories", {"x": now})
    page = text(operator, detail("stock:1"))
    assert "rlock-bar-lost" in page or len(payload) > 10_000
    assert not re.search(r"<(script|img)[^>]*(alert|onerror|onload)|<svg/", page)
    assert "<script>alert" not in page


def test_the_command_prints_it_also_when_the_lock_is_free(past: Past, capsys: pytest.CaptureFixture[str]) -> None:
    happen(past)
    with pytest.raises(CommandError, match="is free"):
        call_command("rlock_info", "stock:1")
    printed = capsys.readouterr().out
    assert re.search(r"longest hold .*, longest wait .*, longest queue 1, gave up 1, lost 0, freed by force 1", printed)
    assert re.search(r"\d\d:\d\d:\d\d +freed by force .* alice: stuck <since> noon", printed)
    with waiting_for("stock:1"):
        call_command("rlock_info", "stock:1", "--format", "json")
    [document] = json.loads(capsys.readouterr().out)
    assert document["timeline"]["gave_up"] == 1
    assert document["timeline"]["last"][0]["by"] == "alice"
