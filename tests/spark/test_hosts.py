"""Several hosts, with real daemons on local endpoints and an engine each; shards split, hosts die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from kcl_local.demo.processes import Processes
from kcl_local.demo.stage import stage
from kcl_local.demo.text import Line
from tests.spark.hosts import (
    Written,
    all_at_work,
    computed,
    host,
    owners,
    rows,
    shards_of_a_key_in_a_batch,
    texts_by_key,
    until,
    windows,
)

WITHIN_S = 400

pytestmark = [pytest.mark.anyio, pytest.mark.prove, pytest.mark.timeout(1800)]


async def test_leases_move_between_hosts_with_an_engine_each_and_nothing_is_lost(tmp_path: Path) -> None:
    """What a planned batch held when its lease went may be in both outputs: a sink keyed by position removes it."""
    async with stage(tmp_path, Processes(), shards=4) as set_up:
        one_file = host(set_up, "one")
        other_file = host(set_up, "other", {"sparkStateReset": "true"})
        logs = [one_file.with_suffix(".log"), other_file.with_suffix(".log")]
        written = Written(set_up)
        await written.write(1_000)

        def found() -> dict[tuple[str, str], str]:
            both = [row for name in ("one", "other") for row in rows(tmp_path / name / "out" / "rows")]
            return {(row.shard_id, row.sequence_number): row.text for row in both}

        async with set_up.daemon(one_file, "one") as one:
            await until(found, WITHIN_S, *logs)
            async with set_up.daemon(other_file, "the other") as other:
                await written.write(1_000)
                await all_at_work(set_up, ["one", "other"], WITHIN_S, *logs)

                async def the_other_has_some() -> bool:
                    await written.write(100)  # a lease changes hands a while after it changes owners
                    return bool(rows(tmp_path / "other" / "out" / "rows"))

                await until(the_other_has_some, WITHIN_S, *logs)
                one.signal(signal.SIGKILL)
                await one.wait()
                await written.write(1_000)
                await all_at_work(set_up, ["other"], WITHIN_S, *logs)
                await until(lambda: len(found()) >= written.count, WITHIN_S, *logs)
                assert await other.stop() == 0, logs[1].read_text()[-5_000:]
    everything = [text for texts in written.by_key.values() for text in texts]
    assert sorted(found().values()) == sorted(everything)
    for name in ("one", "other"):  # within a host nothing comes twice
        mine = [(row.shard_id, row.sequence_number) for row in rows(tmp_path / name / "out" / "rows")]
        assert len(mine) == len(set(mine))


def cut_the_power(folder: Path) -> None:
    """After its daemon, end a host's engine and Java; its spool is gone, its state is not."""
    state = folder / "demo-word-count-spark"
    jvm = json.loads((state / "engine.json").read_text())["pid"]
    os.killpg(os.getpgid(jvm), signal.SIGKILL)
    shutil.rmtree(state / "spool")


@pytest.mark.parametrize("point", ["in_batch", "after_sink"])
async def test_a_host_that_died_in_a_batch_comes_back_when_others_have_its_shards(
    point: str, tmp_path: Path
) -> None:
    async with stage(tmp_path, Processes(), shards=4) as set_up:
        job = {"sparkPipeline": "jobs:slow"}
        one_file = host(set_up, "one", job)
        other_file = host(set_up, "other", {**job, "sparkStateReset": "true"})
        logs = [one_file.with_suffix(".log"), other_file.with_suffix(".log")]
        written = Written(set_up)
        await written.write(1_000)

        def found(*names: str) -> dict[tuple[str, str], str]:
            both = [row for name in names for row in rows(tmp_path / name / "out" / "rows")]
            return {(row.shard_id, row.sequence_number): row.text for row in both}

        async with set_up.daemon(one_file, "one") as one:
            await until(lambda: len(found("one")) >= written.count, WITHIN_S, *logs)
            (tmp_path / "one" / "hold").write_text(point)
            await written.write(1_000)
            await until((tmp_path / "one" / "held").exists, WITHIN_S, *logs)
            one.signal(signal.SIGKILL)
            await one.wait()
            cut_the_power(tmp_path / "one")
        async with set_up.daemon(other_file, "the other") as other:
            await all_at_work(set_up, ["other"], WITHIN_S, *logs)
            await until(lambda: len(found("one", "other")) >= written.count, WITHIN_S, *logs)
            async with set_up.daemon(one_file, "one again") as one:
                await until(lambda: "spark_range_left" in logs[0].read_text(), WITHIN_S, *logs)
                await all_at_work(set_up, ["one", "other"], WITHIN_S, *logs)
                await written.write(1_000)
                await until(lambda: len(found("one", "other")) >= written.count, WITHIN_S, *logs)
                assert await one.stop() == 0, logs[0].read_text()[-5_000:]
            assert await other.stop() == 0, logs[1].read_text()[-5_000:]
    everything = [text for texts in written.by_key.values() for text in texts]
    assert sorted(found("one", "other").values()) == sorted(everything)
    counts = [len(rows(tmp_path / name / "out" / "rows")) for name in ("one", "other")]
    for name, count in zip(("one", "other"), counts, strict=True):  # within a host nothing comes twice
        assert count == len(found(name))
    sys.stdout.write(f"{point}: lost 0, in both outputs {sum(counts) - written.count}\n")
    assert "query_failed" not in logs[0].read_text()


async def test_a_long_batch_keeps_its_leases_and_its_memory(tmp_path: Path) -> None:
    """Ten times as long as a lease without renewal, with timeouts of children that do not apply; 40 MB arrive meanwhile."""
    async with stage(tmp_path, Processes(), shards=2) as set_up:
        small = {"sparkSpoolMaxBytes": "1048576", "maxRecords": "50"}
        child = {"timeoutInSeconds": "1", "childStuckTimeoutMillis": "1000"}
        properties = host(set_up, "host", {"sparkPipeline": "jobs:slow", **small, **child})
        folder, log = properties.parent, properties.with_suffix(".log")
        written = Written(set_up)
        (folder / "hold").write_text("in_batch")
        await written.write(200)
        async with set_up.daemon(properties, "host") as running:
            await until((folder / "held").exists, WITHIN_S, log)
            owned = await owners(set_up)
            state = folder / "demo-word-count-spark"
            engine, daemon, *_ = psutil.Process(
                json.loads((state / "engine.json").read_text())["pid"]
            ).parents()
            before = [each.memory_info().rss for each in (engine, daemon)]
            producer, large = set_up.producer(), b"x" * 20_000
            for _ in range(40):
                await producer.put([Line(f"key-{number}", large) for number in range(50)])
            await anyio.sleep(10 * 3)
            after = [each.memory_info().rss for each in (engine, daemon)]
            spooled = sum(path.stat().st_size for path in (state / "spool").rglob("*.arrow"))
            assert await owners(set_up) == owned
            (folder / "go").touch()
            await until(lambda: len(rows(folder / "out" / "rows")) == 200 + 2_000, WITHIN_S, log)
            assert await running.stop() == 0, log.read_text()[-5_000:]
    grown = [(new - old) >> 20 for new, old in zip(after, before, strict=True)]
    sys.stdout.write(f"spool {spooled >> 20} MiB, engine +{grown[0]} MiB, daemon +{grown[1]} MiB\n")
    assert spooled < 8 * 2**20
    assert max(grown) < 80  # of the daemon, 48 MiB are records in hand
    for event in ("shard_started",):
        assert log.read_text().count(event) == len(owned)


async def test_a_reshard_while_the_job_runs_and_while_it_is_down_changes_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path, Processes(), shards=2) as set_up:
        properties = host(set_up, "host")
        log = properties.with_suffix(".log")
        out = tmp_path / "host" / "out"
        written = Written(set_up)
        await written.write(1_000)
        async with set_up.daemon(properties, "the first run") as first:
            await until(lambda: rows(out / "rows"), WITHIN_S, log)
            await set_up.stream.split()
            await written.write(1_000)
            await until(lambda: len(rows(out / "rows")) >= written.count, WITHIN_S, log)
            assert await first.stop() == 0, log.read_text()[-5_000:]
        await set_up.stream.split()
        await written.write(1_000)
        await set_up.stream.merge()
        await written.write(1_000)
        shutil.rmtree(tmp_path / "host" / "demo-word-count-spark" / "spool")  # a cache; it may be gone
        async with set_up.daemon(properties, "the second run") as second:
            await until(lambda: len(rows(out / "rows")) >= written.count, WITHIN_S, log)
            expected = await computed(set_up)
            await until(lambda: windows(out / "windows") == expected, WITHIN_S, log)
            assert await second.stop() == 0, log.read_text()[-5_000:]
    found = rows(out / "rows")
    assert texts_by_key(found) == dict(written.by_key)
    assert shards_of_a_key_in_a_batch(found) == 1
