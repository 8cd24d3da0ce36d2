"""`kcl-daemon replay`: what it makes of an application's settings, what it refuses, and how fast it reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcl_daemon.cli import main
from kcl_daemon.cli.replay import Limit, LimitedKinesis, ReplayFigures
from kcl_daemon.cli.replay_settings import ReplayRange, replay_settings
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.streams import ListedStream
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.metrics import kcl, own
from kcl_daemon.ports import IteratorKind, ReadFrom
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.simulator.loop import run_virtual
from tests.unit.config.helpers import GOOD, read
from tests.unit.fakes import LoopClock
from tests.unit.retrieval.stage import SHARD, STREAM, Stage

SPAN = ReplayRange(("a", "b"), 100.0, 200.0, frozenset({"shardId-1"}))
LIVE = (
    "adminPort = 8080\nmetricsLevel = DETAILED\nmetricsOtlpEndpoint = http://127.0.0.1:4318\n"
    "tableName = live\nleaseTableDeletionProtectionEnabled = true\nfanoutConfig.consumerName = live\n"
    "maxLeasesForWorker = 1\nfailoverTimeMillis = 4000\nlogProcessorErrors = true\n"
)


def test_a_replay_is_an_application_of_its_own_with_the_same_stream_and_credentials() -> None:
    live = read(LIVE.replace("logProcessorErrors = true\n", "")).settings
    made = replay_settings(live, "july", SPAN, ("other", "program"), None)
    name = f"{live.application_name}-replay-july"
    assert {made.lease_table, made.application_name} == {name}
    assert live.lease_table == "live"
    assert made.tables.layout is TableLayout.SINGLE
    assert not made.tables.leases.deletion_protection, "it could not be removed"
    assert (made.stream_name, made.endpoints) == (live.stream_name, live.endpoints)
    assert made.retrieval.mode is RetrievalMode.POLLING
    assert (made.admin.port, made.metrics.level, made.metrics.otlp_endpoint) == (
        None,
        MetricsLevel.NONE,
        None,
    )
    assert made.initial_position.at is StartAt.TIMESTAMP
    assert made.initial_position.timestamp_s == SPAN.from_s
    assert made.run_until is not None
    assert made.run_until.time_ms == 200_000
    assert made.shards.only == SPAN.shards
    assert made.leases.max_leases_for_worker > 1
    assert made.child == replace(live.child, command=("other", "program"))


def test_a_stream_with_a_position_of_its_own_begins_at_the_range_too() -> None:
    live = read(LIVE.replace("logProcessorErrors = true\n", "")).settings
    latest = InitialPosition(StartAt.LATEST)
    own = replace(
        live.streams,
        names=(ListedStream("orders", position=latest),),
        arns=(ListedStream("bills", "arn:aws:kinesis:eu-west-1:123456789012:stream/bills", latest),),
    )
    made = replay_settings(replace(live, streams=own), "july", SPAN, (), None)
    assert [each.position for each in (*made.streams.names, *made.streams.arns)] == [None, None]
    assert [each.name for each in made.streams.names] == ["orders"]


def test_a_consumer_of_its_own_is_used_for_fan_out() -> None:
    made = replay_settings(
        read(LIVE.replace("logProcessorErrors = true\n", "")).settings, "x", SPAN, (), "own"
    )
    assert made.retrieval.mode is RetrievalMode.FANOUT
    assert (made.fan_out.consumer_arn, made.fan_out.consumer_name) == (None, "own")


def test_an_unfinished_range_goes_on_for_the_same_words_or_times() -> None:
    found = ReplayRange.of(SPAN.row())
    assert found == SPAN
    assert found.is_asked_by(replace(SPAN, from_s=150.0, to_s=250.0)), "-2h means another time by now"
    assert found.is_asked_by(replace(SPAN, texts=("c", "d")))
    assert not found.is_asked_by(replace(SPAN, texts=("c", "d"), to_s=201.0))
    assert not found.is_asked_by(replace(SPAN, shards=frozenset()))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("500/s", Limit(500)),
        ("2MiB/s", Limit(2 * 2**20, bytes=True)),
        ("1.5kib/s", Limit(1536, bytes=True)),
        ("100B/s", Limit(100, bytes=True)),
    ],
)
def test_a_limit_is_of_records_or_of_bytes(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--from", "2h", "--to", "3h"), "--from must be before --to"),
        (("--from", "TRIM_HORIZON", "--to", "1h"), "is not a time"),
        (("--from", "soon", "--to", "1h"), "is not a time"),
        (("--from", "-2h", "--to", "-1h", "--limit", "500"), "not a rate"),
        (("--from", "-2h", "--to", "-1h", "--limit", "0/s"), "not a rate"),
        (("--from", "-2h", "--to", "-1h", "--limit", "fast/s"), "not a rate"),
        (("--from", "-2h", "--to", "-1h", "--name", "a b"), "1 to 64 letters"),
        (("--from", "-2h", "--to", "-1h", "--consumer", "live"), "consumer of the live application"),
        (("--from", "-2h", "--to", "-1h", "--consumer", "x", "--limit", "5/s"), "a limit needs polling"),
        (("--from", "-2h", "--to", "-1h", "--", "no-such-program"), "no-such-program"),
    ],
)
def test_a_replay_that_cannot_be_done_is_refused_before_anything_is_touched(
    tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    file = tmp_path / "app.properties"
    file.write_text(
        GOOD.replace("consumer.py", "true") + "fanoutConfig.consumerName = live\nregionName = eu-west-1\n"
    )
    result = CliRunner().invoke(main, ["replay", str(file), *words])
    assert result.exit_code == 2, result.output
    assert reason in result.output


# The bytes of a payload are two too many for a record of ten.
@pytest.mark.parametrize(("limit", "most_s"), [(Limit(50), 10.5), (Limit(10 * 50, bytes=True), 12.6)])
def test_records_come_no_faster_than_the_limit_and_idle_reads_cost_nothing(
    limit: Limit, most_s: float
) -> None:
    async def play() -> None:
        stage, clock = Stage(), LoopClock()
        stage.put(*(f"{number:010}" for number in range(500)))
        kinesis, began_s = LimitedKinesis(stage.kinesis, limit, clock), clock.monotonic()
        iterator: str | None = await kinesis.get_shard_iterator(
            STREAM, SHARD, ReadFrom(IteratorKind.TRIM_HORIZON)
        )
        given = 0
        while given < 500:
            assert iterator is not None
            fetched = await kinesis.get_records(STREAM, SHARD, iterator, 10_000)
            iterator, given = fetched.next_iterator, given + len(fetched.payload)
        assert 9.0 <= clock.monotonic() - began_s <= most_s
        await clock.sleep(1)
        idle_s = clock.monotonic()
        for _ in range(20):
            assert iterator is not None
            iterator = (await kinesis.get_records(STREAM, SHARD, iterator, 10_000)).next_iterator
        assert clock.monotonic() - idle_s < 1

    run_virtual(play)


def test_a_replay_counts_only_the_metrics_of_its_summary() -> None:
    figures = ReplayFigures()
    for metric in (kcl.PROCESS_RECORDS, kcl.PROCESS_RECORDS, kcl.PROCESS_BYTES, own.CALLS):
        figures.add(metric, 3)
    assert [figures.of(each) for each in (kcl.PROCESS_RECORDS, kcl.PROCESS_BYTES, own.CALLS)] == [6, 3, 0]
