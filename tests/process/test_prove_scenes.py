"""Scenes of a proof with real daemons on local endpoints: what they show, what they find, what they leave behind."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from kcl_local.demo.stream import local_session
from kcl_prove import fleet as fleet_module
from kcl_prove.inventory import Inventory, Run
from kcl_prove.parts import Options, SceneResult, Size
from kcl_prove.prices import Budget
from kcl_prove.scenes import SCENES, traffic
from kcl_prove.stage import Clients, Stage
from tests.process.daemon import ROOT, processes_in
from tests.process.local import local_process

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

RUN_ID = "kcl-prove-0123abcd"
SHORT = Size(records=200, workers=2, shards=2, seconds=5)


@contextmanager
def local_stage(folder: Path, size: Size = SHORT) -> Generator[Stage]:
    with local_process() as local:
        prefix = "AWS_ENDPOINT_URL_"
        urls = {
            name.removeprefix(prefix).lower(): url
            for name, url in local.environment.items()
            if name.startswith(prefix)
        }
        clients = Clients(local_session(), urls)
        inventory = Inventory.begin(folder / "state", Run(RUN_ID, "us-east-1"))
        options = Options("us-east-1", urls, size)
        yield Stage(clients, options, inventory, Budget(5.0, lambda: 0.0), folder=folder, say=print)
        inventory.close()
        clients.close()


def ledgers(folder: Path) -> list[Path]:
    return list(folder.glob("*/ledgers/*"))


async def played(name: str, folder: Path, size: Size = SHORT) -> SceneResult:
    scene = next(each for each in SCENES if each.name == name)
    with local_stage(folder, size) as stage:
        result = await scene.play(stage)
    assert psutil.wait_procs(processes_in(folder / name), timeout=10)[1] == []
    return result


@pytest.mark.parametrize("name", ["reshard", "kill-leader"])
async def test_a_scene_shows_that_nothing_is_lost(name: str, tmp_path: Path) -> None:
    result = await played(name, tmp_path)
    assert result.passed, result.notes
    assert (result.written, result.delivered, result.lost) == (200, 200, 0)
    assert result.requests["kinesis:GetRecords"] > 0
    assert result.requests["dynamodb:UpdateItem"] > 0
    assert result.latency_p50_ms is not None
    assert result.latency_p99_ms is not None
    assert result.gap_ms is not None
    assert 0 < result.latency_p50_ms <= result.latency_p99_ms


async def test_a_record_that_no_child_noted_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "CHILD", "tests.process.processors.forgetful")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(traffic, "SETTLED_WITHIN_S", 8.0)
    result = await played("polling", tmp_path, replace(SHORT, records=50, shards=1, workers=1))
    assert (result.written, result.lost, result.passed) == (50, 1, False)


async def test_a_scene_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    scene = next(each for each in SCENES if each.name == "pause-worker")
    with local_stage(tmp_path, replace(SHORT, seconds=60)) as stage:
        started: list[psutil.Process] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.play, stage)
            while not ledgers(tmp_path):  # noqa: ASYNC110 - files have no events
                await anyio.sleep(0.1)
            started = processes_in(tmp_path / "pause-worker")
            assert started
            tasks.cancel_scope.cancel()
        assert psutil.wait_procs(started, timeout=20)[1] == []
        assert processes_in(tmp_path / "pause-worker") == []
