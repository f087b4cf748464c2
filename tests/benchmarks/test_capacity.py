"""The model of a server's capacity, and what it is made from."""

from contextlib import ExitStack

import pytest

from benchmarks import sizing, stage
from benchmarks.capacity import checks, packets, raw
from benchmarks.results import Row, Table, to_json
from benchmarks.sizing import Costs, Load
from django_rlock import FairLock, RLock
from django_rlock._redis.keys import PROCESSES, queue_key, report_key

COSTS = Costs(
    pair=40,
    handover=80,
    renewal=20,
    report=10,
    heartbeat=25,
    wake=100,
    together=1000,
    idle=0,
    latency=500,
    connection=2048,
)


def test_the_fit_finds_what_made_the_measurements():
    slow, quick = ((rate, sizing.waking(rate, 90, 700)) for rate in (400, 4000))
    assert sizing.fit_waking(slow, quick) == pytest.approx((90, 700))


def test_rates_of_a_load():
    rates = Load(processes=100, pairs=7, handovers=3, held=50, waiting=30, lease=30).rates()
    assert rates == {"pair": 7, "handover": 3, "renewal": 5, "report": 80 / 5 + 5, "heartbeat": 10}


def test_needs_of_a_load():
    load = Load(processes=1000, pairs=5000, held=0)
    needs = sizing.needs(load, COSTS)
    assert needs.work == pytest.approx(0.2)
    assert needs.use == pytest.approx(0.2 + 1e-4 * 10_000 / 11)
    assert (needs.servers, needs.connections, needs.memory) == (1, 2000, 2000 * 2048)


def rows_of(costs):
    """The benchmark's rows, as it makes them."""
    in_micros = {"pair", "handover", "renewal", "report", "heartbeat", "wake"}
    return [
        Row(label, 1.0, details={"µs": getattr(costs, field)})
        if field in in_micros
        else Row(label, getattr(costs, field))
        for field, label in sizing.LABELS.items()
    ]


def test_costs_are_read_from_the_file_of_a_run(tmp_path, capsys):
    file = tmp_path / "out.json"
    file.write_text(to_json([Table("Other", []), Table(sizing.TITLE, rows_of(COSTS))]))
    assert Costs.read(file) == COSTS
    assert sizing.main(["--processes", "1000", "--pairs", "5000", "--costs", str(file)]) == 0
    assert "0.2 cores" in capsys.readouterr().out


def test_a_load_that_one_server_cannot_carry_is_said(capsys):
    sizing.main(["--pairs", "1000000"])
    assert "more than it has" in capsys.readouterr().out


def test_the_error_of_a_prediction():
    row = checks.compared("x", [0.3, 0.2], [0.2, 0.2], 100, "%")
    assert row.figure == pytest.approx(25)
    assert row.details == pytest.approx({"predicted, %": 25, "measured, %": 20})


# --- connections without a client ---------------------------------------------------------------------------------


@pytest.fixture
def valkey(own_server, monkeypatch):
    started = own_server(None, port=0)
    monkeypatch.setenv(stage.URL_VARIABLE, started.url)
    with started.client() as client:
        stage.load_scripts(client)
    return started


@pytest.fixture
def client(valkey):
    with valkey.client() as client:
        yield client


@pytest.fixture
def send(valkey):
    """Send the next packet of a kind's first connection."""
    with ExitStack() as stack:
        opened = {}

        def send_one(sequel):
            if sequel not in opened:
                opened[sequel] = stack.enter_context(raw.links(valkey.url, 1, sequel))
            [link] = opened[sequel]
            link.send()
            while not link.receive():
                pass

        yield send_one


@pytest.mark.parametrize(("sequel", "kind"), [(packets.fair_pair, FairLock), (packets.plain_pair, RLock)])
def test_a_pair_takes_and_frees(sequel, kind, send, client):
    key = kind("bench:pair:0").key
    send(sequel)
    assert client.exists(key)
    send(sequel)
    assert not client.exists(key)


def test_a_renewal_renews(send, client):
    key = FairLock("bench:held:0").key
    send(packets.renewal)
    client.pexpire(key, 1000)
    send(packets.renewal)
    assert client.pttl(key) > 1000


def test_a_beat_keeps_the_place_of_a_waiter(send, client):
    queue = queue_key(FairLock("bench:wanted:0").key)
    send(packets.heartbeat)
    for _ in range(2):
        assert client.zcard(queue) == 1
        send(packets.heartbeat)


def test_a_report_is_one_of_a_process(send, client):
    send(packets.report)
    [process] = client.zrange(PROCESSES, 0, -1)
    assert client.hlen(report_key(process)) == 1


def test_an_error_reply_ends_the_benchmark(valkey):
    wrong = packets.Sequel([packets.Packet(b"*1\r\n$5\r\nWRONG\r\n")])
    with raw.links(valkey.url, 1, lambda _: wrong) as opened, pytest.raises(Exception, match="unknown command"):
        raw.drive(opened, 0.1)
