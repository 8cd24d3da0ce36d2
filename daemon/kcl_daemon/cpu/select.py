"""Which CPU figure a worker goes by, looked up once at start: by files and environment, without any network.

The order is KCL's (EcsResource, EksResource, Ec2Resource), with three differences. Java asks the instance metadata
service whether it is on EC2; here every Linux host has the figure of `/proc/stat`, which is the same formula, and a
start does not wait for a network that may not be there. A container outside ECS and Kubernetes, or in a pod without a
service account, goes by its quota where it has one; Java takes the whole host's figure or none. And where ECS offers
version 3 of its metadata only, from which Java makes nothing, the container is treated like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_daemon.cpu.cgroup import Cgroup, CgroupCpu, CgroupV1, CgroupV2
from kcl_daemon.cpu.ecs import EcsCpu
from kcl_daemon.cpu.host import HostCpu
from kcl_daemon.cpu.metadata import HttpGet
from kcl_daemon.errors import CpuUnreadable
from kcl_daemon.ports import Clock, Cpu

_ECS_ENDPOINT: Final = "ECS_CONTAINER_METADATA_URI_V4"
_KUBERNETES_TOKEN: Final = Path("var/run/secrets/kubernetes.io/serviceaccount/token")
_CGROUPS: Final = Path("sys/fs/cgroup")
_PROC: Final = Path("proc")


@dataclass(frozen=True, slots=True)
class Choice:
    """The figure that was chosen, None where this system has none; and why, for the log.

    `host` names the running system whose CPU it is, where it is that of all processes; None: it is that of this worker's
    container, or the name cannot be read.
    """

    cpu: Cpu | None
    why: str
    host: str | None = None


def choose(*, root: Path, environment: Mapping[str, str], get: HttpGet, clock: Clock) -> Choice:
    """The first that fits: ECS, Kubernetes, a container with a quota, a Linux host. Never raises.

    Args:
        root: where the file system begins, `/`.
        environment: variables of this process.
        get: how to ask the ECS task metadata.
        clock: for figures that are used time by elapsed time.
    """
    if not (root / _PROC).is_dir():
        return Choice(None, "no /proc: not Linux")
    if endpoint := environment.get(_ECS_ENDPOINT):
        return _ecs(endpoint, get)
    return _container(root, clock) or _host(root / _PROC)


def _container(root: Path, clock: Clock) -> Choice | None:
    cgroup = _cgroup(root / _CGROUPS)
    if (root / _KUBERNETES_TOKEN).is_file():
        if cgroup is None:
            return Choice(None, "a Kubernetes pod that sees no control groups")
        return Choice(CgroupCpu(cgroup, clock), "a Kubernetes pod")
    if cgroup is not None and _has_quota(cgroup):
        return Choice(CgroupCpu(cgroup, clock), "a container with a CPU quota")
    return None


def _host(proc: Path) -> Choice:
    if (proc / "stat").is_file():
        return Choice(HostCpu(proc), "a Linux host", _boot_id(proc))
    return Choice(None, "no /proc/stat")


def _boot_id(proc: Path) -> str | None:
    """The same for all workers on a host, in containers too, and for no other host."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text("ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _ecs(endpoint: str, get: HttpGet) -> Choice:
    if not endpoint.startswith("http://"):
        return Choice(None, f"{_ECS_ENDPOINT} is no http:// address")
    return Choice(EcsCpu(endpoint, get), "an ECS task")


def _cgroup(folder: Path) -> Cgroup | None:
    if (folder / "cgroup.controllers").is_file():
        return CgroupV2(folder)
    if (folder / "memory").is_dir() or (folder / "cpu").is_dir():
        return CgroupV1(folder)
    return None


def _has_quota(cgroup: Cgroup) -> bool:
    """A host's own root group has no such file at all."""
    try:
        return cgroup.quota_cpus() is not None
    except CpuUnreadable:
        return False
