"""Two readings become percent: `kcl_daemon.cpu.sources`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.cpu.ecs import EcsUsage, ecs_limit_cpus, ecs_percent
from kcl_daemon.cpu.sources import CgroupUsage, HostTimes, cgroup_percent, host_percent

_HOST = HostTimes(user=1000, nice=100, system=500, idle=9000, iowait=400)
_ECS = EcsUsage(container=350, system=2000, container_before=100, system_before=1000, online_cpus=2)

_COUNTERS = st.integers(0, 10**12)
_TIMES = st.builds(
    HostTimes, user=_COUNTERS, nice=_COUNTERS, system=_COUNTERS, idle=_COUNTERS, iowait=_COUNTERS
)
_NUMBERS = st.floats(0, 1e18, allow_nan=False)


def _host(**added: int) -> HostTimes:
    return _HOST._replace(**{name: getattr(_HOST, name) + value for name, value in added.items()})


@pytest.mark.parametrize(
    ("after", "percent"),
    [
        (_host(user=30, idle=70), 30),
        (_host(user=10, nice=10, system=10, idle=70), 30),
        (_host(iowait=30, idle=70), 30),
        (_host(idle=100), 0),
        (_host(user=100), 100),
    ],
    ids=["user", "nice and system count", "waiting for the disk is busy", "idle", "full"],
)
def test_all_but_idle_is_busy(after: HostTimes, percent: float) -> None:
    assert host_percent(_HOST, after) == percent


def test_counters_that_stand_still_are_an_idle_host() -> None:
    assert host_percent(_HOST, _HOST) == 0


def test_iowait_that_goes_back_by_more_than_the_work_is_an_idle_host() -> None:
    assert host_percent(_HOST, _host(user=10, idle=190, iowait=-50)) == 0


def test_iowait_that_goes_back_a_little_lowers_the_figure() -> None:
    assert host_percent(_HOST, _host(user=60, idle=110, iowait=-10)) == 31.25


@pytest.mark.parametrize(
    "after",
    [_host(idle=-5000), _host(user=10, idle=-10), _host(user=50, idle=-20), _host(user=-30, idle=100)],
    ids=["all went back", "nothing in sum", "idle went back", "user went back"],
)
def test_other_counters_that_go_back_give_no_figure(after: HostTimes) -> None:
    assert host_percent(_HOST, after) is None


@pytest.mark.parametrize(
    ("used_ns", "limit_cpus", "percent"),
    [
        (500_000_000, 1, 25),
        (500_000_000, 0.5, 50),
        (3_000_000_000, 8, 18.75),
        (4_000_000_000, 1, 100),
        (0, 2, 0),
    ],
)
def test_a_group_is_held_against_its_limit(used_ns: int, limit_cpus: float, percent: float) -> None:
    before, after = CgroupUsage(used_ns=7, at_s=50), CgroupUsage(used_ns=7 + used_ns, at_s=52)
    assert cgroup_percent(before, after, limit_cpus=limit_cpus) == percent


@pytest.mark.parametrize(
    ("after", "limit_cpus"),
    [(CgroupUsage(9, 50), 1), (CgroupUsage(9, 49), 1), (CgroupUsage(6, 52), 1), (CgroupUsage(9, 52), 0)],
    ids=["no time passed", "time went back", "usage went back", "no limit"],
)
def test_a_group_without_progress_gives_no_figure(after: CgroupUsage, limit_cpus: float) -> None:
    assert cgroup_percent(CgroupUsage(7, 50), after, limit_cpus=limit_cpus) is None


def test_an_ecs_container_is_held_against_its_limit() -> None:
    assert ecs_percent(_ECS, limit_cpus=2) == 25
    assert ecs_percent(_ECS, limit_cpus=1) == 50
    assert ecs_percent(_ECS, limit_cpus=0.25) == 100


def test_an_ecs_host_whose_time_stands_still_is_full_as_in_java() -> None:
    assert ecs_percent(replace(_ECS, system=1000), limit_cpus=2) == 100


def test_the_first_ecs_sample_gives_no_figure() -> None:
    assert ecs_percent(replace(_ECS, container_before=0, system_before=0), limit_cpus=2) is None
    assert ecs_percent(replace(_ECS, container_before=0), limit_cpus=2) == 35


@pytest.mark.parametrize(
    ("usage", "limit_cpus"), [(replace(_ECS, container=99), 2), (replace(_ECS, system=999), 2), (_ECS, 0)]
)
def test_ecs_counters_that_go_back_and_a_limit_of_nothing_give_no_figure(
    usage: EcsUsage, limit_cpus: float
) -> None:
    assert ecs_percent(usage, limit_cpus=limit_cpus) is None


def test_an_ecs_container_has_its_part_of_the_tasks_cpus() -> None:
    assert ecs_limit_cpus(share=384, shares=512, task_cpus=0.5, online_cpus=2) == 0.375
    assert ecs_limit_cpus(share=384, shares=512, task_cpus=None, online_cpus=2) == 1.5


@pytest.mark.parametrize("shares", [0, 512])
def test_an_ecs_container_without_units_has_all_the_tasks_cpus(shares: float) -> None:
    assert ecs_limit_cpus(share=0, shares=shares, task_cpus=0.5, online_cpus=2) == 0.5


@given(_TIMES, _TIMES)
def test_a_host_figure_is_always_a_percentage(before: HostTimes, after: HostTimes) -> None:
    percent = host_percent(before, after)
    assert percent is None or 0 <= percent <= 100


@given(st.integers(0, 10**18), st.integers(0, 10**18), _NUMBERS, _NUMBERS, st.floats(0.01, 1000))
def test_a_group_figure_is_always_a_percentage(
    used: int, used_after: int, at: float, at_after: float, limit_cpus: float
) -> None:
    percent = cgroup_percent(CgroupUsage(used, at), CgroupUsage(used_after, at_after), limit_cpus=limit_cpus)
    assert percent is None or 0 <= percent <= 100


@given(
    st.builds(EcsUsage, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, st.integers(1, 512)), st.floats(0.01, 1000)
)
def test_an_ecs_figure_is_always_a_percentage(usage: EcsUsage, limit_cpus: float) -> None:
    percent = ecs_percent(usage, limit_cpus=limit_cpus)
    assert percent is None or 0 <= percent <= 100
