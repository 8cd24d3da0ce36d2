"""Which figure fits this machine: `kcl_daemon.cpu.sources`."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kcl_daemon.children.platform import boot_id
from kcl_daemon.cpu.sources import CpuChoice, choose_cpu
from tests.unit.cpu.machine import HandClock, Machine

_ECS = {"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/5f0c"}


def _choose(root: Path, **environment: str) -> CpuChoice:
    return choose_cpu(root=root, environment=environment, clock=HandClock())


def _name(choice: CpuChoice) -> str | None:
    return choice.cpu.name if choice.cpu else None


def _make_pod(root: Path) -> None:
    token = root / "var/run/secrets/kubernetes.io/serviceaccount/token"
    token.parent.mkdir(parents=True)
    token.write_text("token")


@pytest.mark.parametrize("name", ["host_busy", "cgroup_v1_quota", "cgroup_v2_quota"])
def test_ecs_comes_first(name: str, tmp_path: Path) -> None:
    Machine(name, tmp_path)
    _make_pod(tmp_path)
    assert _name(_choose(tmp_path, **_ECS)) == "ecs"


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("cgroup_v1_quota", "cgroup-v1"),
        ("cgroup_v1_free", "cgroup-v1"),
        ("cgroup_v2_quota", "cgroup-v2"),
        ("cgroup_v2_free", "cgroup-v2"),
        ("host_busy", None),
    ],
)
def test_a_pod_goes_by_its_control_group_limited_or_not(
    name: str, chosen: str | None, tmp_path: Path
) -> None:
    Machine(name, tmp_path)
    _make_pod(tmp_path)
    assert _name(_choose(tmp_path)) == chosen


def test_a_pod_that_sees_both_versions_goes_by_the_second(tmp_path: Path) -> None:
    Machine("cgroup_v1_quota", tmp_path)
    Machine("cgroup_v2_quota", tmp_path)
    _make_pod(tmp_path)
    assert _name(_choose(tmp_path)) == "cgroup-v2"


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("cgroup_v1_quota", "cgroup-v1"),
        ("cgroup_v1_free", "host"),
        ("cgroup_v2_quota", "cgroup-v2"),
        ("cgroup_v2_free", "host"),
        ("host_busy", "host"),
    ],
)
def test_outside_kubernetes_a_control_group_counts_only_with_a_quota(
    name: str, chosen: str, tmp_path: Path
) -> None:
    Machine(name, tmp_path)
    assert _name(_choose(tmp_path)) == chosen


def test_a_quota_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    machine = Machine("cgroup_v2_quota", tmp_path)
    (machine.cgroups / "cpu.max").unlink()
    assert _name(_choose(tmp_path)) == "host"


def test_only_version_3_of_the_ecs_metadata_is_a_container_like_any_other(tmp_path: Path) -> None:
    Machine("cgroup_v2_quota", tmp_path)
    choice = _choose(
        tmp_path, ECS_CONTAINER_METADATA_URI="http://169.254.170.2/v3", ECS_CONTAINER_METADATA_URI_V4=""
    )
    assert _name(choice) == "cgroup-v2"


def test_an_ecs_address_of_another_kind_is_not_asked(tmp_path: Path) -> None:
    Machine("host_busy", tmp_path)
    choice = _choose(tmp_path, ECS_CONTAINER_METADATA_URI_V4="file:///etc/passwd")
    assert choice.cpu is None
    assert "ECS_CONTAINER_METADATA_URI_V4" in choice.why


def test_a_host_that_does_not_tell_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    choice = _choose(tmp_path)
    assert choice.cpu is None
    assert "the host's CPU times" in choice.why


def test_a_host_without_proc_has_one(tmp_path: Path) -> None:
    assert _name(_choose(tmp_path)) == "host"


def test_where_the_system_has_no_boot_id_nobody_can_tell_who_shares_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcl_daemon.cpu.sources.boot_id", lambda: boot_id(None))
    assert _choose(tmp_path).host is None


@pytest.mark.anyio
async def test_this_machine_can_be_measured() -> None:
    choice = _choose(Path("/"))
    assert choice.cpu is not None
    await choice.cpu.sample()
    percent = await choice.cpu.sample()
    assert percent is None or 0 <= percent <= 100


def test_workers_on_one_host_can_tell_and_containers_with_their_own_figure_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, container = tmp_path / "host", tmp_path / "container"
    for root, name in ((host, "host_busy"), (container, "cgroup_v2_quota")):
        root.mkdir()
        Machine(name, root)
    note = tmp_path / "proc/sys/kernel/random/boot_id"
    note.parent.mkdir(parents=True)
    note.write_text("1f2e\n")
    monkeypatch.setattr("kcl_daemon.cpu.sources.boot_id", lambda: boot_id(tmp_path / "proc"))
    assert (_name(_choose(host)), _choose(host).host) == ("host", "1f2e")
    assert (_name(_choose(container)), _choose(container).host) == ("cgroup-v2", None)
