"""Texts of the kernel and of ECS become values: `kcl_daemon.cpu.sources`."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.cpu.ecs import EcsTask, EcsUsage, parse_ecs_share, parse_ecs_task, parse_ecs_usage
from kcl_daemon.cpu.sources import (
    count_cpus,
    parse_counter,
    parse_cpu_max,
    parse_quota_us,
    parse_usage_us,
    quota_cpus,
)
from tests.unit.cpu.machine import ecs


@pytest.mark.parametrize(
    ("text", "cpus"), [("0\n", 1), ("0-3\n", 4), ("0-3,6\n", 5), ("1,3,5", 3), ("0-1,4-5,127", 5), ("7-7", 1)]
)
def test_cpu_sets_are_counted(text: str, cpus: int) -> None:
    assert count_cpus(text) == cpus


@given(st.sets(st.integers(0, 300), min_size=1))
def test_any_cpu_set_is_counted_as_the_kernel_writes_it(cpus: set[int]) -> None:
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    assert count_cpus(text + "\n") == len(cpus)


def test_quotas_of_both_versions_are_cpus_and_none_without() -> None:
    assert parse_cpu_max("50000 100000\n") == 0.5
    assert parse_cpu_max("max 100000\n") is None
    assert quota_cpus(parse_quota_us("150000\n"), parse_counter("100000\n")) == 1.5
    assert quota_cpus(parse_quota_us("-1\n"), 100000) is None


def test_usage_is_found_by_its_name() -> None:
    assert parse_usage_us("usage_usec 17\nuser_usec 12\n") == 17
    assert parse_usage_us("user_usec 12\nusage_usec 17\n") == 17


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_counter, "-4\n"),
        (parse_counter, "1 2"),
        (parse_usage_us, "user_usec 12\n"),
        (parse_usage_us, "usage_usec\n"),
        (parse_cpu_max, "100000\n"),
        (parse_cpu_max, "0 100000\n"),
        (parse_cpu_max, "100000 0\n"),
        (parse_quota_us, "unlimited\n"),
        (count_cpus, "\n"),
        (count_cpus, "3-2"),
        (count_cpus, "0-"),
        (count_cpus, "0,,1"),
        (count_cpus, "²"),
    ],
)
def test_malformed_files_are_value_errors(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)


def test_ecs_figures_are_read() -> None:
    assert parse_ecs_usage(ecs("stats.json")) == EcsUsage(
        container=48_211_400_000,
        system=9_812_340_000_000,
        container_before=47_961_400_000,
        system_before=9_810_340_000_000,
        online_cpus=2,
    )
    assert parse_ecs_share(ecs("container.json")) == 384
    assert parse_ecs_task(ecs("task.json")) == EcsTask(cpus=0.5, shares=512)


def test_ecs_limits_may_be_missing() -> None:
    assert parse_ecs_share(ecs("container_without_limit.json")) == 0
    assert parse_ecs_task(ecs("task_without_limit.json")) == EcsTask(cpus=None, shares=0)


def test_ecs_figures_before_the_first_sample_are_nought() -> None:
    usage = parse_ecs_usage(ecs("stats_first.json"))
    assert usage is not None
    assert (usage.container_before, usage.system_before) == (0, 0)
    assert parse_ecs_usage(b"null") is None


@pytest.mark.parametrize("missing", ["online_cpus", "system_cpu_usage", "cpu_usage"])
def test_an_ecs_figure_that_is_missing_is_named(missing: str) -> None:
    document = orjson.loads(ecs("stats.json"))
    del document["cpu_stats"][missing]
    with pytest.raises(ValueError, match=missing):
        parse_ecs_usage(orjson.dumps(document))


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"Containers": {}}', b'{"cpu_stats": {"online_cpus": true}}']
)
@pytest.mark.parametrize("parse", [parse_ecs_usage, parse_ecs_task])
def test_malformed_ecs_answers_are_value_errors(parse: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(body)
