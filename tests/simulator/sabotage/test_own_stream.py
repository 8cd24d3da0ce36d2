"""The checker of strangers can fail: workers of another stream that do not look whose tables they are."""

from __future__ import annotations

import pytest

from kcl_daemon.fleet import streams
from kcl_daemon.fleet.streams import OwnStreamCheck
from tests.simulator.plans.plan import Kind, Plan, Planned, Start, Stop
from tests.simulator.runner import run_plan


def violation(*events: Planned, first: Kind = Kind.OURS) -> str | None:
    plan = Plan(
        shards=4,
        records_per_s=8.0,
        events=(Planned(0.0, Start(first)), *events),
        calm_at_s=270.0,
        ends_at_s=720.0,
        bound_s=350.0,
        astray_shards=4,
    )
    found = run_plan(plan, scenario="sabotage of strangers", seed=1).violation
    return None if found is None else found.name


BESIDE = (Planned(220.0, Start(Kind.ASTRAY)),)
ALONE = (Planned(210.0, Stop(0, 30.0)), Planned(220.0, Start(Kind.ASTRAY)))


def test_a_stranger_that_looks_ends_beside_others_and_alone() -> None:
    for first in (Kind.OURS, Kind.JAVA):
        assert violation(*BESIDE, first=first) is None
        assert violation(*ALONE, first=first) is None


@pytest.mark.parametrize("first", [Kind.OURS, Kind.JAVA])
@pytest.mark.parametrize("events", [BESIDE, ALONE])
def test_a_stranger_that_does_not_look_is_noticed(
    monkeypatch: pytest.MonkeyPatch, first: Kind, events: tuple[Planned, ...]
) -> None:
    async def looks_at_nothing(_check: OwnStreamCheck, _is_new: bool) -> None: ...

    monkeypatch.setattr(OwnStreamCheck, "check", looks_at_nothing)
    monkeypatch.setattr(OwnStreamCheck, "_require", lambda *_: None)
    assert violation(*events, first=first) == "written_by_a_stranger"


def test_a_stranger_that_does_not_try_positions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both streams have four shards: only the checkpoints of Java's leases tell."""
    monkeypatch.setattr(streams, "_MAX_TRIED", 0)
    assert violation(*BESIDE, first=Kind.JAVA) == "written_by_a_stranger"
