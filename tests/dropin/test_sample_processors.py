"""The sample processors in `clients/samples`, each with its own properties file under the real daemon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_daemon.config.properties import variable_for
from kcl_protocol.messages import Initialize, LeaseLost, ProcessRecords, Record, ShardEnded, ShutdownRequested
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.dropin.matrix import NUMBER, ODD_KEY, ROOT, talk
from tests.dropin.resharding import QUICK, is_finished, open_shards, split
from tests.process.daemon import Application, Daemon, application, run_daemon, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

SAMPLES: Final = ROOT / "clients" / "samples"
SOURCES: Final = {"node": "consumer.js", "go": "main.go", "shell": "consumer.sh"}
TOOLS: Final = {"node": "node", "go": "go", "shell": "jq"}
LINES_MOST: Final = 100
BUILD_WITHIN_S: Final = 250


@pytest.fixture(params=SOURCES, scope="module")
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a sample's folder, built where it has to be."""
    name = str(request.param)
    if shutil.which(TOOLS[name]) is None:
        pytest.skip(f"{TOOLS[name]} is not installed: the sample in {name} WAS NOT RUN")
    folder = tmp_path_factory.mktemp("sample") / name
    shutil.copytree(SAMPLES / name, folder)
    if name == "go":
        alone = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
        command = ["go", "build", "-o", "consumer", "."]
        subprocess.run(command, cwd=folder, env={**os.environ, **alone}, check=True, timeout=BUILD_WITHIN_S)
    return folder


def written(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What the processors have appended, by shard."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in (folder / "out").glob("*.jsonl"):
        whole = file.read_bytes().rpartition(b"\n")[0]
        found[file.stem] = [json.loads(line) for line in whole.splitlines()]
    return found


@pytest.fixture
def started(sample: Path, local: Local) -> Callable[[Application], Any]:
    """Starts a daemon with the sample's own file; what differs here is told by the environment."""
    shutil.rmtree(sample / "out", ignore_errors=True)

    def start(app: Application) -> Any:
        reported = {**QUICK, "streamName": app.name, "applicationName": app.name, "retrievalMode": "POLLING"}
        return run_daemon(
            sample,
            "--properties",
            "app.properties",
            environment={
                **local.environment,
                **{variable_for(name): str(value) for name, value in reported.items()},
            },
        )

    return start


def test_records_in_are_records_out_through_a_reshard_and_a_restart(
    local: Local, tmp_path: Path, sample: Path, started: Callable[[Application], Any]
) -> None:
    with application(local, tmp_path, f"processor-{sample.name}", shards=2) as app:
        app.put(20)
        daemon: Daemon
        with started(app) as daemon:
            wait_until(lambda: app.stored(app.last_written), "all is checkpointed")
            parent = open_shards(app)[0]
            split(app, parent, open_then=3)
            app.put(10)
            wait_until(lambda: is_finished(app, parent), "the parent is finished")
            wait_until(lambda: app.stored(open_shards(app)), "all is checkpointed")
            daemon.stop()
            assert not daemon.named("child_failed")
            assert not daemon.named("child_stray_output")
            assert not daemon.named("unknown_property")
        app.put(5)
        with started(app) as daemon:
            wait_until(lambda: app.stored(open_shards(app)), "all is checkpointed")
            daemon.stop()
        lines = written(sample)
        assert sum(map(len, lines.values())) == 2 * 20 + 3 * 10 + 3 * 5
        assert {line["text"] for records in lines.values() for line in records} == {"a record"}
        for shard_id, records in lines.items():
            places = [
                ExtendedSequenceNumber(each["sequenceNumber"], each["subSequenceNumber"]) for each in records
            ]
            assert places == sorted(set(places)), f"repeats or disorder in {shard_id}"
            assert places[-1].sequence_number == app.last_written[shard_id]


def command_of(folder: Path) -> str:
    (line,) = (
        line
        for line in (folder / "app.properties").read_text("ascii").splitlines()
        if line.startswith("executableName")
    )
    program, *words = line.partition("=")[2].split()
    found = [str(folder / word) if (folder / word).is_file() else word for word in (program, *words)]
    found[-1] = str(folder / "out")
    return " ".join(found)


def record(data: str, key: str | None, sub_sequence_number: int) -> Record:
    return Record(data, key, NUMBER, 1_735_689_600_250, sub_sequence_number)


def test_it_tries_checkpoints_again_and_only_where_that_helps(sample: Path) -> None:
    shutil.rmtree(sample / "out", ignore_errors=True)
    records = [record("", "empty", 0), record("w6QKIg==", ODD_KEY, 1), record("QUJD" * 300_000, "large", 2)]
    records.append(record("", None, 3))
    with talk(command_of(sample)) as processor:
        assert processor.perform(Initialize("shardId-7", "TRIM_HORIZON", 0)) == ["ok"]
        errors = ("ThrottlingException", "KinesisClientLibDependencyException", None)
        assert processor.perform(ProcessRecords(records, None), *errors) == ["ckpt", "ckpt", "ckpt", "ok"]
        assert processor.perform(ProcessRecords([], 0), "ShutdownException") == ["ckpt", "ok"]
        assert processor.perform(ShutdownRequested()) == ["ckpt", "ok"]
        assert processor.perform(LeaseLost()) == ["ok"]
        code, stderr = processor.finish()
    assert code == 0, stderr
    assert "ShutdownException" in stderr
    lines = written(sample)["shardId-7"]
    assert [line["subSequenceNumber"] for line in lines] == [0, 1, 2, 3]
    assert [line["partitionKey"] or None for line in lines] == ["empty", ODD_KEY, "large", None]
    assert [line["text"] for line in lines] == ["", '\u00e4\n"', "ABC" * 300_000, ""]
    assert {line["sequenceNumber"] for line in lines} == {NUMBER}


def test_it_checkpoints_the_end_of_a_shard_and_ends_with_its_stdin(sample: Path) -> None:
    with talk(command_of(sample)) as processor:
        assert processor.perform(Initialize("shardId-8", NUMBER, 0)) == ["ok"]
        assert processor.perform(ShardEnded(), "ThrottlingException", None) == ["ckpt", "ckpt", "ok"]
        assert processor.finish()[0] == 0


@pytest.mark.parametrize("name", SOURCES)
def test_a_sample_is_short(name: str) -> None:
    assert len((SAMPLES / name / SOURCES[name]).read_text("utf-8").splitlines()) < LINES_MOST
