"""The checker finds what must not happen, and explains what is not promised."""

import json
from typing import Any

import pytest

from tests.soak.checker import check
from tests.soak.records import DOUBTS, FORGETS, LATE, NODE_FORGETS, STEPS_BACK, read

HOLD: dict[str, Any] = {
    "kind": "fair",
    "place": "one",
    "names": ["x"],
    "mode": "alone",
    "amount": 1,
    "limit": 1,
    "lease": 3.0,
    "token": None,
}


@pytest.fixture
def verdict(tmp_path):
    """What the checker says of these records; each is a line of JSON."""

    def judge(*records: dict[str, Any]):
        (tmp_path / "w0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        return check(read(tmp_path))

    return judge


def got(hold: str, at: float, **fields: Any) -> dict[str, Any]:
    times = {"asked": at - 0.1, "got": at, "deadline": at + HOLD["lease"]}
    return {**HOLD, "line": "got", "id": hold, "owner": f"w{hold}.1.1", **times, **fields}


def seen(hold: str, at: float, deadline: float) -> dict[str, Any]:
    return {"line": "seen", "id": hold, "at": at, "deadline": deadline, "lease": 3.0}


def line(what: str, hold: str, at: float) -> dict[str, Any]:
    return {"line": what, "id": hold, "at": at}


def event(began: float, ended: float, effect: str | None = FORGETS, **fields: Any) -> dict[str, Any]:
    return {
        "line": "event",
        "deed": "crash",
        "place": "one",
        "began": began,
        "ended": ended,
        "effect": effect,
        **fields,
    }


def texts(verdict) -> list[str]:
    return [violation.what for violation in verdict.violations]


def test_one_after_another(verdict):
    found = verdict(got("1", 10), line("leaving", "1", 11), got("2", 11), line("leaving", "2", 12))
    assert not found.violations
    assert found.holds == {"fair": 2}


def test_two_inside(verdict):
    found = verdict(got("1", 10), line("leaving", "1", 11.5), got("2", 11, kind="rlock"), event(20, 21))
    assert "fair and rlock inside together for 500.0 ms" in texts(found)[0]


def test_excerpt_shows_what_happened_at_that_time(verdict):
    found = verdict(got("1", 10), got("2", 11), event(10.5, 10.6, None), event(20, 21), got("3", 11, names=["y"]))
    (violation,) = found.violations
    assert [part.split()[1] for part in violation.excerpt] == ["-", "*", "-"]
    assert "+0.0000 - fair w2.1.1" in str(violation)


ENDS = event(11, 11, None, deed="end a process", name="w1")
ALLOWED = {
    "others elsewhere": [got("1", 10), got("2", 11, names=["y"]), got("3", 11, place="pair")],
    "an owner enters again": [got("1", 10), got("2", 11, owner="w1.1.1")],
    "readers": [got("1", 10, mode="read"), got("2", 11, mode="read")],
    "after the lease of a dead process": [got("1", 10), got("2", 13.0)],
    "who was paused past its lease knows that": [
        *(got("1", 10), got("2", 14)),
        *(line("lost", "1", 15), line("leaving", "1", 15)),
    ],
    "a lease that is being changed may end at any time": [got("1", 10), line("changing", "1", 11), got("2", 11.5)],
    "after the end of a process": [got("1", 10), ENDS, got("2", 11.5)],
    "a process that ends may tell of losses": [got("1", 10), ENDS, line("lost", "1", 11.5)],
    "a loss after the lease": [got("1", 10), line("lost", "1", 13)],
}
REFUSED = {
    "a member of several": [got("1", 10, names=["x", "y"]), got("2", 11, names=["y"])],
    "a writer beside a reader": [got("1", 10, mode="read"), got("2", 11, mode="alone")],
    "a reader beside a writer": [got("1", 10, mode="alone"), got("2", 11, mode="read")],
    "within the lease of a dead process": [got("1", 10), got("2", 12.9)],
    "within a renewed lease": [got("1", 10), seen("1", 12, 15.0), got("2", 14)],
    "within a lease that was changed": [
        *(got("1", 10), line("changing", "1", 11)),
        *(seen("1", 11.1, 12.0), got("2", 11.5)),
    ],
    "before the end of a process": [got("1", 10), ENDS, got("2", 10.5)],
}


@pytest.mark.parametrize("records", ALLOWED.values(), ids=ALLOWED)
def test_what_may_be(verdict, records):
    assert not verdict(*records).violations


@pytest.mark.parametrize("records", REFUSED.values(), ids=REFUSED)
def test_what_may_not_be(verdict, records):
    assert verdict(*records).violations


# --- what is known ----------------------------------------------------------------------------------------------------


def test_forgotten_before_the_other_got_in(verdict):
    found = verdict(got("1", 10), event(10.5, 11), got("2", 11.5))
    assert not found.violations
    assert found.known == {"fair and fair inside together: crash": 1}


def test_forgotten_before_it_was_known_of(verdict):
    """Its process was stopped when the reply came."""
    found = verdict(event(10.5, 10.6), got("1", 11, asked=10.7), got("2", 11.5, asked=10.4, deadline=13.4))
    assert not found.violations


@pytest.mark.parametrize(
    "unrelated",
    [
        event(12, 12.5),  # the other one was in by then
        event(8, 9),  # before the first one asked
        event(10.5, 11, None),
        event(10.5, 11, NODE_FORGETS),
        event(10.5, 11, place="pair"),
        event(10.5, 11, name="y"),
    ],
)
def test_events_that_explain_no_overlap(verdict, unrelated):
    assert verdict(got("1", 10), unrelated, got("2", 11.5)).violations


def test_no_renewal_succeeds_after_the_loss(verdict):
    """A loss explains an overlap for a lease, and no longer."""
    later = got("2", 11.5), seen("2", 14, 17)
    assert not verdict(got("1", 10), event(10.5, 11), *later, seen("1", 13.9, 14)).violations
    assert verdict(got("1", 10), event(10.5, 11), *later, seen("1", 13.9, 14.1)).violations


def test_freed_by_force(verdict):
    freeing = {"line": "freeing", "id": "f", "deed": "free", "place": "one", "name": "x", "began": 10.5}
    freed = {"line": "freed", "id": "f", "ended": 10.6}
    assert not verdict(got("1", 10), freeing, freed, got("2", 11)).violations
    assert verdict(got("1", 10.9), freeing, freed, got("2", 11)).violations
    late = got("1", 10.5 + LATE), got("2", 10.5 + LATE)
    assert not verdict(freeing, *(dict(each, asked=10.5) for each in late)).violations


# --- what holders are told --------------------------------------------------------------------------------------------


def test_a_loss_without_a_reply_while_clocks_are_wrong(verdict):
    records = [got("a", 10), line("lost", "a", 11)]
    doubt, hang = event(10.5, 10.9, DOUBTS, place="processes"), event(10, 10.5, None, deed="hang")
    found = verdict(*records, doubt, hang)
    assert (found.violations, dict(found.known)) == ([], {"fair lost before its lease ended: crash": 1})
    assert verdict(*records, hang, event(8, 9, DOUBTS, place="processes")).violations
    assert verdict(*records, doubt).violations, "the server would have confirmed it"


def test_a_reported_loss_without_a_loss(verdict):
    assert "for nothing" in texts(verdict(got("1", 10), line("lost", "1", 11)))[0]


@pytest.mark.parametrize("effect", [FORGETS, NODE_FORGETS])
def test_a_reported_loss(verdict, effect):
    found = verdict(got("1", 10), event(10.5, 10.6, effect), line("lost", "1", 11))
    assert not found.violations
    assert found.known == {"fair lost before its lease ended: crash": 1}


def test_an_error_that_a_worker_saw_is_a_violation(verdict):
    wrong = {"line": "wrong", "what": "opened too soon", "at": 11, "place": "one", "since": 10}
    assert texts(verdict(wrong)) == ["opened too soon"]
    assert not verdict(wrong, event(10.5, 10.6)).violations
    assert verdict(dict(wrong, place=None), event(10.5, 10.6)).violations


# --- permits ----------------------------------------------------------------------------------------------------------


def permits(hold: str, at: float, amount: int, **fields: Any) -> dict[str, Any]:
    return got(hold, at, mode="permit", amount=amount, limit=3, kind="permits", **fields)


def test_more_permits_than_there_are(verdict):
    assert not verdict(permits("1", 10, 2), permits("2", 11, 1)).violations
    assert verdict(permits("1", 10, 2), permits("2", 11, 2)).violations
    assert verdict(permits("1", 10, 2), permits("2", 11, 2, owner="w1.1.1")).violations, "an owner has no free ones"


def test_forgotten_permits(verdict):
    assert not verdict(permits("1", 10, 2), event(10.5, 10.6), permits("2", 11, 2)).violations
    remembered = permits("1", 10, 2), event(10.5, 10.6), permits("2", 11, 2), permits("3", 11.1, 2)
    assert len(verdict(*remembered).violations) == 1, "the loss does not explain those after it"


def test_semaphore_whose_number_was_forgotten(verdict):
    """Permits released to a new number make it too high for good."""
    endless = {"lease": float("inf"), "deadline": float("inf")}
    first = permits("1", 10, 2, **endless), line("leaving", "1", 11)
    later = permits("2", 20, 2, **endless), permits("3", 21, 2, **endless)
    assert verdict(*first, *later).violations
    assert not verdict(*first, event(10.5, 10.6), *later).violations


# --- tokens -----------------------------------------------------------------------------------------------------------


def fenced(hold: str, at: float, token: int, **fields: Any) -> list[dict[str, Any]]:
    return [got(hold, at, kind="fenced", token=token, **fields), line("leaving", hold, at + 0.5)]


@pytest.mark.parametrize("token", [7, 6])
def test_token_that_does_not_rise(verdict, token):
    assert not verdict(*fenced("1", 10, 7), *fenced("2", 11, 8)).violations
    assert "not above 7" in texts(verdict(*fenced("1", 10, 7), *fenced("2", 11, token)))[0]


def test_who_asked_together_may_have_tokens_in_any_order(verdict):
    assert not verdict(*fenced("1", 10, 8, asked=9), *fenced("2", 11, 7, asked=9)).violations


def test_counter_lost_behind_a_clock_set_back(verdict):
    lost, back = event(10.5, 10.6), event(5, 5, STEPS_BACK)
    assert verdict(*fenced("1", 10, 7), lost, *fenced("2", 11, 6)).violations
    assert verdict(*fenced("1", 10, 7), back, *fenced("2", 11, 6)).violations
    assert not verdict(*fenced("1", 10, 7), back, lost, *fenced("2", 11, 6)).violations


# --- records ----------------------------------------------------------------------------------------------------------


def test_last_line_of_a_killed_process(tmp_path):
    (tmp_path / "w0.jsonl").write_text(json.dumps(got("1", 10)) + "\n" + '{"line": "lea')
    assert len(read(tmp_path).holds) == 1
