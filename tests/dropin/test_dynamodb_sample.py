"""The sample for DynamoDB, written for the StreamsMultiLangDaemon of the Java adapter 1.x, with the real amazon_kclpy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_daemon.config.properties import variable_for
from kcl_local.changes.stream import StreamsOptions
from tests.dropin.matrix import ROOT
from tests.dropin.obtain import KCLPY, KCLPY_OF_KCL_1_8, kclpy
from tests.dropin.resharding import QUICK
from tests.process.daemon import run_daemon, wait_until
from tests.process.test_changes_process import ITEMS, TABLE, table

pytestmark = pytest.mark.timeout(120)

_SAMPLE: Final = ROOT / "clients" / "samples" / "dynamodb"
_GOLDEN: Final = json.loads((ROOT / "tests" / "golden" / "dynamodb_kcl1.json").read_text("utf-8"))
_ROUNDS: Final = 8
_SHARD: Final = "shardId-000000000000"


def _written(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "out" / f"{_SHARD}.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("version", "protocol"), [(KCLPY, "current"), (KCLPY_OF_KCL_1_8, "kcl_1_8")])
def test_our_daemon_gives_it_what_the_java_daemon_gave(version: str, protocol: str, tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    shutil.copytree(_SAMPLE, folder)
    (folder / "answer.json").write_text(_GOLDEN["answer"], "utf-8")
    path = os.pathsep.join((str(kclpy(version)), os.environ.get("PYTHONPATH", "")))
    ran = subprocess.run(
        [sys.executable, "-m", "kcl_daemon", "run-child", "--records", "answer.json", "--format", "kcl1",
         "--batch", "4", "--protocol", protocol, "--", sys.executable, "consumer.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "delivered 11 of 11 records, 4 checkpoints, last at SHARD_END" in ran.stdout
    of_java = [json.loads(text) for text in _GOLDEN["data"]]
    assert _written(folder) == [
        {
            "name": each["eventName"],
            "at": each["dynamodb"]["ApproximateCreationDateTime"],
            "keys": each["dynamodb"]["Keys"],
            "new": each["dynamodb"].get("NewImage"),
            "old": each["dynamodb"].get("OldImage"),
            "sequenceNumber": each["dynamodb"]["SequenceNumber"],
        }
        for each in of_java
    ]


def test_it_follows_a_table_under_the_real_daemon_with_the_file_of_the_java_daemon(tmp_path: Path) -> None:
    """Its `streamName` is the stream's ARN; shards roll meanwhile."""
    folder = tmp_path / "sample"
    shutil.copytree(_SAMPLE, folder)
    with table(tmp_path, StreamsOptions(shard_life_s=4.0)) as it:
        reported = {**QUICK, "streamName": it.model.stream(TABLE).arn, "applicationName": it.app.name}
        path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
        environment = {
            **it.app.local.environment,
            **{f"AWS_ENDPOINT_URL_DYNAMODB{end}": it.app.local.dynamodb_url for end in ("", "_STREAMS")},
            "AWS_ENDPOINT_URL_CLOUDWATCH": it.app.local.cloudwatch_url,
            **{variable_for(name): str(value) for name, value in reported.items()},
            "PATH": path,
            "PYTHONPATH": os.pathsep.join((str(kclpy()), os.environ.get("PYTHONPATH", ""))),
        }
        with run_daemon(folder, "--properties", "app.properties", environment=environment) as daemon:
            for _ in range(_ROUNDS):
                it.write(ITEMS)
                time.sleep(1.0)  # noqa: TID251 - shards live for real seconds here

            def versions() -> dict[str, list[int]]:
                """In the order of their shards, whose names grow."""
                found: dict[str, list[int]] = defaultdict(list)
                for file in sorted((folder / "out").glob("*.jsonl")):
                    for line in map(json.loads, file.read_text("utf-8").splitlines()):
                        found[line["keys"]["id"]["S"]].append(int(line["new"]["version"]["N"]))
                return found

            wait_until(lambda: sum(map(len, versions().values())) == _ROUNDS * ITEMS, daemon.tail)
            daemon.stop()
        assert list(versions().values()) == [list(range(1, _ROUNDS + 1))] * ITEMS
        assert len(list((folder / "out").glob("*.jsonl"))) > 2
        assert not daemon.named("child_failed")
