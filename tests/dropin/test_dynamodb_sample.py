"""The sample for DynamoDB, written for the StreamsMultiLangDaemon of the Java adapter 1.x, with the real amazon_kclpy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.dropin.matrix import ROOT
from tests.dropin.obtain import KCLPY, KCLPY_OF_KCL_1_8, kclpy

pytestmark = pytest.mark.timeout(120)

_SAMPLE: Final = ROOT / "clients" / "samples" / "dynamodb"
_GOLDEN: Final = json.loads((ROOT / "tests" / "golden" / "dynamodb_kcl1.json").read_text("utf-8"))
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
