"""The data source `kcl` over a log whose hosts state how complete it is, called as Spark calls it; no JVM."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType

import kcl_spark_source
from kcl_spark_source import (
    KclDataSource,
    KclStreamReader,
    LandingError,
    _Known,
    _parsed,
    from_offset,
    kcl_listener,
    kcl_progress,
)
from tests.spark.landed import BEGIN_MS, STREAM, Landed, key

EVERYTHING = ReadAllAvailable()
FIELDS = ("data", "approximate_arrival_timestamp", "shard_id", "stream")


class Clock:
    """Ours, and how long we have watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.wall_ms = BEGIN_MS + 10.0**6
        monkeypatch.setattr(kcl_spark_source, "_now_s", lambda: self.now_s)
        monkeypatch.setattr(kcl_spark_source, "_now_ms", lambda: self.wall_ms)

    def goes(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_ms += 1000 * seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def landed(tmp_path: Path) -> Landed:
    """Shard 0 has a minute of records, shard 1 only the first ten seconds: its host is dead."""
    log = Landed(tmp_path / "log", marks=True)
    for second in range(60):
        log.add(0, 10, second)
        if second < 10:
            log.add(1, 5, second)
    log.roster({0: [], 1: []})
    log.mark("alive", {0: 60})
    log.mark("dead", {1: 9.5})
    return log


def stream(landed: Landed, **options: object) -> KclStreamReader:
    fields = StructType()
    for each in FIELDS:
        fields.add(each, StringType())
    said = {each: str(value) for each, value in options.items()}
    return KclDataSource({"path": str(landed.folder), **said}).streamReader(fields)


def rows(reader: KclStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[Any, ...]]:
    away = pickle.loads(pickle.dumps(reader))
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    batches = [batch for part in parts for batch in away.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def after(reader: KclStreamReader, clock: Clock, start: dict[str, Any], seconds: float = 6) -> dict[str, Any]:
    """The next offset, as Spark keeps it, after a while in which even rosters are looked at."""
    clock.goes(seconds)
    found: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, EVERYTHING)))
    return found


def reached_s(offset: dict[str, Any], shard: int) -> float:
    place = from_offset(offset, "log-1").get(key(shard))
    return (place.ms - BEGIN_MS) / 1000 if place else 0


def warnings(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if part in each.getMessage()]


def test_the_shard_of_a_dead_host_holds_the_others_by_itself(landed: Landed, clock: Clock) -> None:
    """Its manifest says for ever that it was at the tip."""
    reader = stream(landed)
    end = after(reader, clock, reader.initialOffset())
    # Complete up to 9.9 s, and a watermark may be delayed by two windows and five seconds.
    assert reached_s(end, 1) == pytest.approx(9.8)
    assert 14.8 <= reached_s(end, 0) <= 15.9
    assert end["h"] == from_offset(end, "log-1")[key(0)].ms - 6_000
    assert after(reader, clock, end) == end
    said = reader.reportLatestOffset() or {}
    assert (said["horizon"], said["heldBy"], said["leftBehind"]) == (BEGIN_MS + 9_800, key(1), {})
    landed.mark("other", {1: 40})
    further = after(reader, clock, end)
    assert 44.8 <= reached_s(further, 0) <= 45.9


def test_a_child_and_a_shard_that_nobody_has_hold_before_they_have_anything(
    landed: Landed, clock: Clock
) -> None:
    landed.mark("other", {1: 60})
    landed.roster({0: [], 1: [], 2: [1]})
    reader = stream(landed)
    end = after(reader, clock, reader.initialOffset())
    assert 14.8 <= reached_s(end, 0) <= 15.9
    assert (reader.reportLatestOffset() or {})["heldBy"] == key(2)
    landed.mark("third", {2: 30})
    assert 34.8 <= reached_s(after(reader, clock, end), 0) <= 35.9


def test_without_a_roster_nothing_is_taken_until_the_bound(
    landed: Landed, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody says which shards there are: not the shards that have marks."""
    (landed.folder / "_shards" / f"{STREAM}.json").unlink()
    landed.mark("other", {1: 60})
    reader = stream(landed)
    start = reader.initialOffset()
    assert after(reader, clock, start) == start
    assert (reader.reportLatestOffset() or {})["heldBy"] == f"{STREAM}/*"
    end = after(reader, clock, start, 55)
    assert reached_s(end, 0) > 59
    assert f"{STREAM}/* (up to no known time)" in warnings(caplog, "left behind")[0]
    landed.roster({0: [], 1: [], 2: []})
    landed.add(0, 10, 70)
    landed.mark("alive", {0: 71})
    landed.mark("other", {1: 71})
    assert after(reader, clock, end) == end
    assert (reader.reportLatestOffset() or {})["heldBy"] == key(2)


def left_behind(landed: Landed, clock: Clock, reader: KclStreamReader) -> dict[str, Any]:
    end = after(reader, clock, reader.initialOffset())
    for _ in range(8):
        assert after(reader, clock, end) == end
    return after(reader, clock, end, 10)


def test_a_shard_that_stands_still_is_left_behind_and_what_it_still_gets_is_counted(
    landed: Landed, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(landed)
    with caplog.at_level(logging.WARNING):
        end = left_behind(landed, clock, reader)
        assert reached_s(end, 0) == pytest.approx(59.9)
        assert end["h"] == BEGIN_MS + 59_900 - 6_000
        assert end["left"] == {key(1): BEGIN_MS + 9_800}
        assert after(reader, clock, end) == end
    (said,) = warnings(caplog, "left behind")
    assert f"{key(1)} (up to 2027-01-15T08:00:09+00:00)" in said
    report = reader.reportLatestOffset() or {}
    assert (report["leftBehind"], report["lateRows"]) == ({key(1): BEGIN_MS + 9_800}, 0)
    # Two segments before h, one that it lies in: 53.9 s is within 53 to 54.
    for second, span_s in ((10, 1), (11, 42), (53, 2), (56, 1)):
        landed.add(1, 20, second, span_s)
    landed.mark("other", {1: 60})
    final = after(reader, clock, end)
    arrived = [row[1].timestamp() * 1000 for row in rows(reader, end, final)]
    assert len(arrived) == 80
    assert final["late"] == sum(ms < end["h"] for ms in arrived) == 49
    assert (reader.reportLatestOffset() or {})["lateRows"] == 49
    assert "left" not in final


def test_after_a_restart_it_is_not_waited_for_again_and_rows_are_counted_on(
    landed: Landed, clock: Clock
) -> None:
    end = left_behind(landed, clock, stream(landed))
    landed.add(0, 10, 60)
    landed.mark("alive", {0: 61})
    again = stream(landed)
    further = after(again, clock, end)
    assert reached_s(further, 0) == pytest.approx(60.9)
    landed.add(1, 10, 12)
    landed.mark("other", {1: 13})
    late = after(stream(landed), clock, further)
    assert (late["late"], late["h"]) == (10, further["h"])
    # Once it moves it holds again.
    landed.add(0, 10, 62)
    held = after(stream(landed), clock, late)
    assert held == late


def test_a_bound_by_option_and_by_the_roster(landed: Landed, clock: Clock) -> None:
    for options, failover_ms, wait_s in (
        ({}, 10_000, 60),
        ({}, 30_000, 120),
        ({"maxSkewWaitMillis": 7_000}, 30_000, 7),
    ):
        landed.roster({0: [], 1: []}, failover_ms=failover_ms)
        reader = stream(landed, **options)
        end = after(reader, clock, reader.initialOffset())
        assert reached_s(end, 0) < 16
        clock.goes(wait_s - 12.5 if wait_s > 7 else 0)
        assert reached_s(after(reader, clock, end, 0.5), 0) < 16
        assert reached_s(after(reader, clock, end, 12), 0) > 59
    reader = stream(landed, maxSkewWaitMillis=0)
    assert reached_s(after(reader, clock, reader.initialOffset()), 0) > 59


def test_an_offset_of_before_goes_on_and_one_of_now_is_read_as_before(landed: Landed, clock: Clock) -> None:
    reader = stream(landed)
    end = after(reader, clock, reader.initialOffset())
    old = {name: end[name] for name in ("v", "log", "shards")}
    landed.mark("other", {1: 60})
    further = after(stream(landed), clock, old)
    assert reached_s(further, 0) > 59
    assert set(further) == {"v", "log", "shards", "h"}
    assert from_offset(further, "log-1") == {
        each: from_offset(further, "log-1")[each] for each in further["shards"]
    }


def test_unreadable_files_beside_the_manifests_are_warned_of_once_and_count_for_nothing(
    landed: Landed, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    landed.put("_marks/dead.json", b"\xff{")
    landed.put("_marks/deep.json", b"[" * 10**6)
    landed.put("_marks/large.json", b" " * (9 * 2**20))
    landed.put("_marks/other.json", b'{"version":1,"log":"log-2","atMs":1,"windowMs":1,"shards":{}}')
    landed.put("_marks/.young.json", b"")
    landed.put("_shards/gone.json", b"null")
    landed.mark("future", {1: 10**6}, at_ms=BEGIN_MS + 1)
    landed.mark("ahead", {1: 10**6 + 100}, at_ms=BEGIN_MS + 10**9 + 10**5)
    reader = stream(landed)
    with caplog.at_level(logging.WARNING):
        end = after(reader, clock, reader.initialOffset())
        for _ in range(3):
            landed.put("_marks/dead.json", b"\xff{")
            assert after(reader, clock, end) == end
    assert reached_s(end, 0) < 16
    for path in (
        "_marks/dead",
        "_marks/deep",
        "_marks/large",
        "_marks/other",
        "_shards/gone",
        "_marks/future",
        "_marks/ahead",
    ):
        assert len(warnings(caplog, path)) == 1, path
    assert warnings(caplog, "young") == []


def test_a_log_of_older_writers_is_read_as_before(tmp_path: Path, clock: Clock) -> None:
    log = Landed(tmp_path / "log")
    for second in range(60):
        log.add(0, 10, second)
    log.add(1, 5, 0)
    reader = stream(log)
    end = after(reader, clock, reader.initialOffset())
    assert reached_s(end, 0) > 59
    assert set(end) == {"v", "log", "shards", "from"}


def test_marks_cost_one_list_and_rosters_one_in_five_seconds(
    landed: Landed, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    read: list[str] = []
    for what, names in (("listing", listed), ("read", read)):
        whole = getattr(kcl_spark_source.Store, what)

        def noted(store: Any, path: str, names: list[str] = names, whole: Callable[..., Any] = whole) -> Any:
            names.append(path)
            return whole(store, path)

        monkeypatch.setattr(kcl_spark_source.Store, what, noted)
    reader = stream(landed)
    end = after(reader, clock, reader.initialOffset(), 2)
    listed.clear()
    read.clear()
    after(reader, clock, end, 2)
    assert sorted(listed) == sorted(["_marks", "_manifests", f"_manifests/{STREAM}"])
    assert read == []
    landed.mark("dead", {1: 10.5})
    clock.goes(2)
    reader.latestOffset(end, EVERYTHING)
    assert listed.count("_shards") == 1
    assert read == ["_marks/dead.json"]


def test_available_now_takes_what_is_complete_and_leaves_a_dead_host_by_its_age(
    landed: Landed, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for age_s, newest_s in ((30, 16), (61, 60)):
        landed.mark("dead", {1: 9.5}, at_ms=round(clock.wall_ms) - age_s * 1_000)
        landed.mark("alive", {0: 60}, at_ms=round(clock.wall_ms))
        landed.manifest(1, at_ms=round(clock.wall_ms) - age_s * 1_000)
        reader = stream(landed)
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        end = reader.latestOffset(start, EVERYTHING)
        landed.mark("other", {1: 60}, at_ms=round(clock.wall_ms))
        assert newest_s - 1.2 <= reached_s(end, 0) <= newest_s
        assert reader.latestOffset(end, EVERYTHING) == end
        (landed.folder / "_marks" / "other.json").unlink()
    assert len(warnings(caplog, "left behind")) == 1


@pytest.mark.parametrize(("since_s", "is_taken"), [(61, True), (30, False), (None, False)])
def test_available_now_goes_on_without_a_roster_once_hosts_have_stated_marks_for_long(
    landed: Landed, clock: Clock, since_s: int | None, is_taken: bool
) -> None:
    """A leader of an older version writes none; a new log has none for a moment."""
    (landed.folder / "_shards" / f"{STREAM}.json").unlink()
    now_ms = round(clock.wall_ms)
    since_ms = None if since_s is None else now_ms - since_s * 1_000
    for host, shard in (("alive", 0), ("other", 1)):
        landed.mark(host, {shard: 60}, at_ms=now_ms, since_ms=since_ms)
    reader = stream(landed)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert (end != start) is is_taken
    assert not is_taken or reached_s(end, 0) > 59


def test_available_now_goes_on_without_a_shard_that_an_earlier_run_left(landed: Landed, clock: Clock) -> None:
    end = left_behind(landed, clock, stream(landed))
    landed.add(0, 10, 70)
    landed.mark("alive", {0: 71}, at_ms=round(clock.wall_ms))
    landed.mark("dead", {1: 9.5}, at_ms=round(clock.wall_ms))
    reader = stream(landed)
    reader.prepareForTriggerAvailableNow()
    assert reached_s(reader.latestOffset(end, EVERYTHING), 0) > 70


def test_a_quiet_stream_gives_a_row_of_its_horizon_if_it_is_asked_for(landed: Landed, clock: Clock) -> None:
    landed.mark("other", {1: 60})
    quiet = stream(landed)
    end = after(quiet, clock, quiet.initialOffset())
    landed.mark("alive", {0: 75.5})
    landed.mark("other", {1: 80})
    assert after(quiet, clock, end) == end
    reader = stream(landed, idleRows="true")
    idle = after(reader, clock, end)
    assert (idle["idle"], idle["shards"]) == (BEGIN_MS + 75_500, end["shards"])
    (row,) = rows(reader, end, idle)
    assert (row[0], row[1].timestamp() * 1000, row[2:]) == (None, BEGIN_MS + 75_500, (None, None))
    assert after(reader, clock, idle) == idle
    # A batch that is done again has the same row; also where the option is gone, and the log has moved on.
    landed.mark("alive", {0: 75.9})
    landed.add(0, 10, 76)
    assert rows(stream(landed), end, idle) == [row]
    assert after(reader, clock, end)["shards"] != end["shards"]
    further = after(reader, clock, idle)
    assert "idle" not in further
    assert len(rows(reader, idle, further)) == 10
    landed.mark("alive", {0: 78.5})
    landed.mark("other", {1: 78.3})
    assert after(reader, clock, further)["idle"] == BEGIN_MS + 78_300


def test_no_row_is_made_up_where_a_shard_does_not_say_how_complete_it_is(
    landed: Landed, clock: Clock
) -> None:
    landed.mark("other", {1: 60})
    landed.marks = False
    landed.add(2, 1, 60)
    landed.mark("alive", {0: 100})
    landed.mark("other", {1: 100})
    reader = stream(landed, idleRows="true")
    end = after(reader, clock, reader.initialOffset())
    assert after(reader, clock, end) == end


def test_longer_windows_of_before_and_merged_segments_are_cut_into_parts(
    tmp_path: Path, clock: Clock
) -> None:
    log = Landed(tmp_path / "log", marks=True)
    log.add(0, 600, 0, 60)
    for second in range(60):
        log.add(1, 10, second)
    log.compact(1, 10, 49)
    log.roster({0: [], 1: []})
    log.mark("a", {0: 60})
    log.mark("b", {1: 20})
    reader = stream(log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    assert after(reader, clock, start) == end
    arrived = [row[1].timestamp() - BEGIN_MS / 1000 for row in rows(reader, start, end)]
    assert 20 < max(arrived) <= 66
    log.mark("b", {1: 60})


def test_a_segment_that_was_merged_again_since_the_pages_were_read_is_cut_all_the_same(
    landed: Landed, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed.mark("other", {1: 30})
    landed.compact(0, 10, 39)
    reader = stream(landed)
    start = reader.initialOffset()
    monkeypatch.setattr(kcl_spark_source, "_LISTED_S", 10.0**6)
    landed.compact(0, 5, 45)
    end = reader.latestOffset(start, EVERYTHING)
    assert 30 < reached_s(end, 0) <= 36
    came = [row[0].decode() for row in rows(reader, start, end) if row[0].startswith(b"0:")]
    assert came == landed.data(0)[: len(came)]
    assert len(came) > 300


def test_a_progress_says_who_holds_and_what_came_late() -> None:
    latest = {
        "v": 1,
        "log": "l",
        "shards": {},
        "horizon": 7,
        "heldBy": "s/a",
        "leftBehind": {"s/b": 3},
        "lateRows": 9,
    }
    progress = {"sources": [{"latestOffset": json.dumps(latest), "endOffset": None}, {"latestOffset": {}}]}
    assert kcl_progress(progress) == {
        "horizon_ms": 7,
        "held_by": "s/a",
        "left_behind": {"s/b": 3},
        "late_rows": 9,
        "bytes": 0,
        "lag": {},
    }
    assert kcl_progress(None) == {}


class Event:
    """Of a query, as Spark hands it to a listener."""

    def __init__(self, name: str | None, latest: object) -> None:
        self.progress = self
        self.name = name
        self.id = "1-2"
        self.json = json.dumps({"sources": [{"latestOffset": latest}]})


def test_a_listener_replaces_a_file_for_prometheus_and_tells_cloudwatch_once_a_minute(
    tmp_path: Path, clock: Clock
) -> None:
    put: list[dict[str, Any]] = []

    class Client:
        def put_metric_data(self, **said: Any) -> None:
            put.append(said)

    path = tmp_path / "kcl.prom"
    listener = kcl_listener(prometheus=str(path), cloudwatch=Client(), namespace="space")
    clock.wall_ms = 9_000
    latest = {
        "v": 1,
        "log": "l",
        "shards": {},
        "horizon": 2_000,
        "heldBy": "s/a",
        "leftBehind": {"s/b": 3},
        "lateRows": 9,
    }
    listener.onQueryProgress(Event(None, {"topic": 1}))
    assert not path.exists()
    for seconds in (0, 30, 31):
        clock.now_s += seconds
        listener.onQueryProgress(Event('a "b"', latest))
    listener.onQueryProgress(Event(None, {**latest, "lateRows": 4}))
    lines = path.read_text().splitlines()
    assert 'kcl_source_late_rows{query="a \\"b\\""} 9' in lines
    assert 'kcl_source_late_rows{query="1-2"} 4' in lines
    assert 'kcl_source_horizon_age_milliseconds{query="1-2"} 7000' in lines
    assert not any("lag" in line for line in lines), "no shard is known"
    assert lines.count("# TYPE kcl_source_left_behind_shards gauge") == 1
    assert list(tmp_path.iterdir()) == [path]
    assert [each["MetricData"][0]["Dimensions"][0]["Value"] for each in put] == ['a "b"', 'a "b"', "1-2"]
    assert put[0]["Namespace"] == "space"
    assert {
        "MetricName": "late_rows",
        "Value": 9.0,
        "Dimensions": [{"Name": "query", "Value": 'a "b"'}],
    } in put[0]["MetricData"]


def told(port: str, path: str = "/metrics") -> list[str]:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode()).splitlines()


def test_prometheus_may_ask_the_listener_and_sees_which_query_is_silent(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kcl_spark_source"):
        listener = kcl_listener(prometheus="0")
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", caplog.text)
    assert told(port) == []
    latest = {"v": 1, "log": "l", "shards": {}, "lateRows": 9}
    for query, query_id in (("a", "1"), ("b", "2")):
        event = Event(query, latest)
        event.id = query_id
        listener.onQueryProgress(event)
    clock.goes(30)
    for query_id in ("2", "unknown"):
        idle = Event(None, {})
        idle.id = query_id
        listener.onQueryIdle(idle)
    clock.goes(5)
    lines = told(port)
    assert 'kcl_source_late_rows{query="a"} 9' in lines
    assert 'kcl_source_silent_seconds{query="a"} 35' in lines
    assert 'kcl_source_silent_seconds{query="b"} 5' in lines
    with pytest.raises(HTTPError, match="404"):
        told(port, "/")
    with pytest.raises(LandingError, match=f"cannot listen on 127.0.0.1:{port}"):
        kcl_listener(prometheus=f"127.0.0.1:{port}")


@pytest.mark.parametrize("where", ["s3a://bucket/kcl.prom", "localhost:http", "127.0.0.1:99999"])
def test_where_a_listener_cannot_tell_is_refused(where: str) -> None:
    with pytest.raises(LandingError, match=re.escape(where)):
        kcl_listener(prometheus=where)


ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.text('],"behindMs[:', max_size=14),
        st.none() | st.lists(st.text(max_size=3), max_size=2),
    ),
    max_size=4,
)


@given(ENTRIES, st.lists(st.tuples(st.integers(0, 4), ENTRIES, st.booleans()), max_size=5))
def test_a_manifest_that_has_grown_is_read_as_if_it_were_new(
    entries: list[Any], changes: list[tuple[int, list[Any], bool]]
) -> None:
    before: _Known | None = None
    for kept, more, is_first in [(9, [], False), *changes]:
        entries = [*entries[:kept], *more]
        rows = [[at, at, text, number, *[0] * 6, below] for at, (number, text, below) in enumerate(entries)]
        said = {"stream": "s", "entries": rows, "behindMs": 0, "atMs": 1}
        if is_first:
            said = {"behindMs": 0, **said}
        text = json.dumps(said, separators=(",", ":")).encode()
        content, known = _parsed(text, before)
        assert content["entries"] == json.loads(text)["entries"]
        before = _Known((0, 0), 0.0, settled=False, content=content, rows=known)
