"""The comment at the head of each script is its contract; here it is compared with what the body uses."""

import hashlib
import re
from importlib.resources import files

import pytest

from django_rlock._redis import scripts
from django_rlock._redis.scripts import Script

ALL = sorted((each for each in vars(scripts).values() if isinstance(each, Script)), key=lambda each: each.name)
INCLUDED = {
    "announce", "clock", "counting", "extensions", "fair_grant", "guests", "hand_on", "java_entry",
    "java_queue", "lease", "limited_refusal", "listeners", "move_reservation", "multi_sides", "note_success", "owns",
    "permit_reclaim", "publish_always", "publish_both", "read_hold", "read_holds", "read_leave", "read_refusal",
    "shorter_lease", "token", "voter", "write_hold", "write_leave", "write_waiters",
}  # fmt: skip

SEVERAL = {"fair_heartbeat": 5, "java_heartbeat": 3, "lock_renew": 1, "task_finish": 1}
"""Scripts for any number of locks, and how many keys each lock has there; they come sort by sort."""

SHARED = {"fair_heartbeat": 3, "lock_renew": 2, "task_finish": 2}
"""Those with an owner for each lock, and how many arguments come before."""

SORTED = {
    "side_renew": {"KEYS": ["2*i-1", "2*i"], "ARGV": ["1", "2", "2+i"]},
    "multi_acquire": {
        "KEYS": ["i", "n+i", "2*n+i", "2*n+f+i", "2*n+f+m+i", "2*n+f+2*m+i"],
        "ARGV": ["1", "2", "3", "4", "5", "4+2*i", "5+2*i"],
    },
    "multi_release": {
        "KEYS": ["i", "n+i", *(f"{sort}*n+i" for sort in range(2, 7)), "6*n+m+i", "6*n+2*m+i", "6*n+3*m+i"],
        "ARGV": ["1", "2", "3", "3+i"],
    },
}
"""Scripts with other keys for each lock, and the indices that they read; for the last two see ``test_multi``."""


def header(script: Script) -> str:
    own = files("django_rlock._redis.scripts").joinpath(f"{script.name}.lua").read_text()
    return "\n".join(line for line in own.split("\n\n", 1)[0].splitlines() if line.startswith("--"))


def body(script: Script) -> str:
    return re.sub(r"--.*", "", script.source)


@pytest.mark.parametrize("script", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_header_names_what_the_body_uses(script, table):
    if script.name in SORTED:
        names = SORTED[script.name][table]
        assert re.findall(rf"^-- {table}\[(\S+)\]  +\S", header(script), re.MULTILINE) == names
        return
    if table == "KEYS" and script.name in SEVERAL:
        sorts = SEVERAL[script.name]
        names = ["i", "n+i", *(f"{sort}*n+i" for sort in range(2, sorts))][:sorts]
        assert re.findall(r"^-- KEYS\[(\S+)\]", header(script), re.MULTILINE) == names
        assert re.search(rf"n\b.* = #KEYS{f' / {sorts}' if sorts > 1 else ''}\b", body(script))
        return
    if table == "ARGV" and script.name in SHARED:  # an owner for each lock follows the others
        shared = SHARED[script.name]
        names = [*map(str, range(1, shared + 1)), f"{shared}+i"]
        assert re.findall(r"^-- ARGV\[(\S+)\]", header(script), re.MULTILINE) == names
        return
    told = [int(number) for number in re.findall(rf"^-- {table}\[(\d+)\]  \S", header(script), re.MULTILINE)]
    used = {int(number) for number in re.findall(rf"{table}\[(\d+)\]", body(script))}
    assert told == sorted(used) == list(range(1, len(told) + 1))
    assert not re.search(rf"{table}\b(?!\[\d+\])", body(script)), "an index that this test cannot read"


@pytest.mark.parametrize("script", ALL, ids=lambda each: each.name)
def test_header_says_what_it_does_and_returns(script):
    lines = header(script).splitlines()
    assert re.match(r"-- [A-Z].*\.$", lines[0])
    assert any(re.fullmatch(r"-- ARGV\[1\] +nonce", line) for line in lines)
    assert re.search("^-- Returns (the nonce, for (OK|1)|{nonce, )", header(script), re.MULTILINE)


@pytest.mark.parametrize("script", ALL, ids=lambda each: each.name)
def test_every_reply_begins_with_the_nonce(script):
    top = re.sub(r"local function (?!(take|acquire)\b).*?\nend", "", body(script), flags=re.DOTALL)
    replies = re.findall(r"return (?!take\(\)|with_javas\(acquire\(\))(.*\S)", top)
    assert replies
    assert all(re.match(r"ARGV\[1\]$|{ARGV\[1\], ", reply) for reply in replies), replies


@pytest.mark.parametrize("script", ALL, ids=lambda each: each.name)
def test_server_knows_it_by_its_hash(script, redis_client):
    assert redis_client.script_load(script.source) == script.sha
    assert hashlib.sha1(script.source.encode()).hexdigest() == script.sha
    assert "-- include:" not in script.source


def test_every_file_is_loaded():
    found = {
        each.name.removesuffix(".lua") for each in files("django_rlock._redis.scripts").iterdir() if ".lua" in each.name
    }
    assert found == {each.name for each in ALL} | INCLUDED
