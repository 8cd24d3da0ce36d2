"""Recorded files and documents become percent: host, control groups, ECS."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from kcl_daemon.cpu.ecs import EcsCpu
from kcl_daemon.cpu.sources import CgroupV1, CgroupV2, HostCpu
from kcl_daemon.errors import CpuUnreadable
from kcl_daemon.ports import Cpu
from tests.unit.cpu.machine import HandClock, Machine, ecs

_MakeCpu = Callable[[Machine, HandClock], Cpu]


@pytest.fixture(autouse=True)
def _its_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


def _host(machine: Machine, clock: HandClock) -> Cpu:
    return HostCpu()


def _v1(machine: Machine, clock: HandClock) -> Cpu:
    return CgroupV1(machine.cgroups, clock)


def _v2(machine: Machine, clock: HandClock) -> Cpu:
    return CgroupV2(machine.cgroups, clock)


_RECORDINGS: list[tuple[str, _MakeCpu, float, list[float | None]]] = [
    # 208/208, 205/205 and so on: two busy CPUs that never idle.
    ("host_busy", _host, 1.0, [None, 100.0, 100.0, 100.0]),
    ("host_still", _host, 1.0, [None, 0.0, 25.0]),
    ("host_iowait", _host, 1.0, [None, 0.0, 50 / 160 * 100, 50.0]),
    ("host_hotplug", _host, 1.0, [None, None, 50.0, 50.0]),
    ("cgroup_v2_quota", _v2, 1.0, [None, 60.0, 100.0]),
    ("cgroup_v2_free", _v2, 1.0, [None, 10.0, 70 / 3]),
    ("cgroup_v1_quota", _v1, 1.0, [None, 30.0, 100.0]),
    ("cgroup_v1_free", _v1, 0.25, [None, 82.9223788, 82.048877, 80.9689034, 82.1025962]),
]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "make", "step_s", "expected"), _RECORDINGS, ids=[row[0] for row in _RECORDINGS]
)
async def test_recorded_readings_give_these_figures(
    name: str, make: _MakeCpu, step_s: float, expected: list[float | None], tmp_path: Path
) -> None:
    machine, clock = Machine(name, tmp_path), HandClock()
    cpu = make(machine, clock)
    figures: list[float | None] = []
    for reading in range(machine.readings):
        machine.show(reading)
        figures.append(await cpu.sample())
        clock.now += step_s
    assert figures == [percent if percent is None else pytest.approx(percent) for percent in expected]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "make", "path"),
    [
        ("cgroup_v2_quota", _v2, "sys/fs/cgroup/cpu.stat"),
        ("cgroup_v2_quota", _v2, "sys/fs/cgroup/cpu.max"),
        ("cgroup_v2_free", _v2, "sys/fs/cgroup/cpuset.cpus.effective"),
        ("cgroup_v1_quota", _v1, "sys/fs/cgroup/cpu/cpuacct.usage"),
        ("cgroup_v1_quota", _v1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        ("cgroup_v1_quota", _v1, "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
        ("cgroup_v1_free", _v1, "sys/fs/cgroup/cpuset/cpuset.effective_cpus"),
    ],
)
async def test_a_file_that_is_missing_or_malformed_is_named(
    name: str, make: _MakeCpu, path: str, tmp_path: Path
) -> None:
    machine = Machine(name, tmp_path)
    cpu = make(machine, HandClock())
    file = tmp_path / path
    for content in (b"", b"\xff\xfe", b"what is this\n"):
        file.write_bytes(content)
        with pytest.raises(CpuUnreadable, match=file.name):
            await cpu.sample()
    file.unlink()
    with pytest.raises(CpuUnreadable, match=f"{file.name}: No such file"):
        await cpu.sample()


@pytest.mark.anyio
async def test_after_a_failure_the_figure_covers_the_time_since_the_last_good_reading(tmp_path: Path) -> None:
    machine = Machine("host_still", tmp_path)
    cpu = HostCpu()
    await cpu.sample()
    for text in ("", "cpu ?\n", "cpu 1 2\n"):
        (tmp_path / "proc/stat").write_text(text)
        with pytest.raises(CpuUnreadable, match="the host's CPU times"):
            await cpu.sample()
    machine.show(2)
    assert await cpu.sample() == 25


@pytest.mark.anyio
async def test_a_limit_that_is_changed_counts_at_once(tmp_path: Path) -> None:
    machine, clock = Machine("cgroup_v2_quota", tmp_path), HandClock()
    cpu = _v2(machine, clock)
    await cpu.sample()
    machine.show(1)
    (machine.cgroups / "cpu.max").write_text("300000 100000\n")
    clock.now += 1
    assert await cpu.sample() == pytest.approx(10)


@pytest.mark.anyio
async def test_version_1_with_both_controllers_in_one_folder_needs_no_other(tmp_path: Path) -> None:
    machine = Machine("cgroup_v1_quota", tmp_path)
    shutil.rmtree(machine.cgroups / "cpuset")
    assert await _v1(machine, HandClock()).sample() is None


class Metadata:
    """Recorded answers by path; counts the questions."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    async def get(self, url: str) -> bytes:
        path = url.removeprefix("http://169.254.170.2/v4/5f0c")
        self.asked.append(path)
        try:
            return self.answers[path]
        except KeyError:
            raise CpuUnreadable("status 404") from None


def _ecs(**answers: bytes) -> Metadata:
    recorded = {"/stats": ecs("stats.json"), "": ecs("container.json"), "/task": ecs("task.json")}
    return Metadata(
        recorded | {{"container": ""}.get(name, f"/{name}"): body for name, body in answers.items()}
    )


def _ecs_cpu(metadata: Metadata) -> EcsCpu:
    return EcsCpu("http://169.254.170.2/v4/5f0c/", metadata.get)


@pytest.mark.anyio
async def test_an_ecs_container_with_limits_is_held_against_its_share_of_the_task() -> None:
    # 0.25 s of 2 s on two CPUs is a quarter of a CPU; the limit is 384/512 of half a CPU.
    assert await _ecs_cpu(_ecs()).sample() == pytest.approx(0.25 / 0.375 * 100)


@pytest.mark.anyio
async def test_an_ecs_container_without_limits_is_held_against_the_host() -> None:
    metadata = _ecs(container=ecs("container_without_limit.json"), task=ecs("task_without_limit.json"))
    assert await _ecs_cpu(metadata).sample() == pytest.approx(12.5)


@pytest.mark.anyio
async def test_ecs_limits_are_asked_for_once() -> None:
    metadata = _ecs()
    cpu = _ecs_cpu(metadata)
    await cpu.sample()
    await cpu.sample()
    assert metadata.asked == ["/stats", "", "/task", "/stats"]


@pytest.mark.anyio
@pytest.mark.parametrize("body", [b"null", ecs("stats_first.json")], ids=["nothing yet", "first sample"])
async def test_an_ecs_container_that_has_just_started_has_no_figure(body: bytes) -> None:
    assert await _ecs_cpu(_ecs(stats=body)).sample() is None


@pytest.mark.anyio
@pytest.mark.parametrize(("path", "shown"), [("/stats", "/stats"), ("", "container"), ("/task", "/task")])
async def test_an_ecs_answer_that_is_missing_or_malformed_is_named_without_the_address(
    path: str, shown: str
) -> None:
    metadata = _ecs()
    cpu = _ecs_cpu(metadata)
    metadata.answers[path] = b"<html>"
    with pytest.raises(CpuUnreadable, match=f"{shown}: ") as malformed:
        await cpu.sample()
    del metadata.answers[path]
    with pytest.raises(CpuUnreadable, match=f"{shown}: status 404") as missing:
        await cpu.sample()
    assert "5f0c" not in f"{malformed.value}{missing.value}"


@pytest.mark.anyio
async def test_ecs_limits_are_asked_for_again_after_a_failure() -> None:
    metadata = _ecs()
    cpu = _ecs_cpu(metadata)
    task = metadata.answers.pop("/task")
    with pytest.raises(CpuUnreadable):
        await cpu.sample()
    metadata.answers["/task"] = task
    assert await cpu.sample() == pytest.approx(0.25 / 0.375 * 100)
