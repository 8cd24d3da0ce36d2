"""The points between two writes: what a kill and a pause there do, and that a bug between two writes is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon import faults
from kcl_daemon.assignment.plan import Fleet
from kcl_daemon.consumer.poison import PoisonSearch
from kcl_daemon.errors import ChildError
from kcl_daemon.leases.lease import Lease
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.batch_text import EncodedBatch
from kcl_daemon.records.dead_letter import LetterCause
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, When
from tests.simulator.plans.plan import AtPoint, Plan, Planned, Split, Start
from tests.simulator.plans.point_draws import BASES
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios.all import draw_plan
from tests.simulator.scenarios.poison import DEAD_LETTERS

QUIET = Plan(
    shards=2,
    records_per_s=4.0,
    events=(Planned(0.0, Start()), Planned(1.0, Start())),
    calm_at_s=90.0,
    ends_at_s=170.0,
    children_plan=ChildrenPlan(behaviour=Behaviour(when=When.EACH_BATCH, process_s=(0.05, 0.5))),
)


def traced(*points: AtPoint, plan: Plan = QUIET) -> tuple[Outcome, list[tuple[float, str, str, str]]]:
    lines: list[str] = []
    outcome = run_plan(replace(plan, points=points), scenario="points", seed=1, write=lines.append)
    found = []
    for line in lines:
        at, who, event, *detail = line.split(None, 3)
        found.append((float(at), who, event, "".join(detail)))
    return outcome, found


def test_a_worker_that_is_killed_at_a_point_writes_nothing_after_it() -> None:
    outcome, lines = traced(AtPoint("after-checkpoint-write", 5, None))
    assert outcome.violation is None
    assert outcome.points["after-checkpoint-write"].kills == 1
    (place,) = [number for number, line in enumerate(lines) if line[2] == "at_point"]
    _, killed, _, _ = lines[place]
    written = [event for _, who, event, _ in lines[place:] if who == killed and event == "row_written"]
    assert written == []
    before = [line for line in lines[:place] if line[1] == killed and line[2] == "row_written"]
    assert "checkpoint=" in before[-1][3]


def test_a_worker_that_is_paused_at_a_point_writes_on_when_it_wakes_up() -> None:
    outcome, lines = traced(AtPoint("after-lease-created", 1, 25.0))
    assert outcome.violation is None
    assert outcome.points["after-lease-created"].pauses == 1
    (place,) = [number for number, line in enumerate(lines) if line[2] == "at_point"]
    paused_s, paused, _, _ = lines[place]
    written_s = [at for at, who, event, _ in lines[place:] if who == paused and event == "row_written"]
    in_flight_s = 0.1
    assert written_s, "it goes on"
    assert [at for at in written_s if paused_s + in_flight_s < at < paused_s + 25.0] == []


def test_nothing_happens_at_points_when_a_run_has_ended() -> None:
    traced(AtPoint("after-checkpoint-write", 10_000, None))
    assert faults._at is faults._nothing


SPLITS = replace(QUIET, events=(*QUIET.events, Planned(20.0, Split(0))), calm_at_s=40.0, ends_at_s=120.0)
BORN = (AtPoint("after-child-lease-created", 1, None),)


def not_read_before_it_was_renewed(patch: pytest.MonkeyPatch) -> None:
    """An owner that died between its lease's creation and the first renewal is waited for, for ever."""
    is_free = Fleet.is_free

    def is_free_later(fleet: Fleet, lease: Lease) -> bool:
        return is_free(fleet, lease) and not (lease.lease_owner is not None and lease.lease_counter == 0)

    patch.setattr(Fleet, "is_free", is_free_later)


def test_a_bug_between_two_writes_is_found_at_the_point_and_not_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert traced(*BORN, plan=SPLITS)[0].violation is None
    not_read_before_it_was_renewed(monkeypatch)
    assert traced(plan=SPLITS)[0].violation is None
    found = traced(*BORN, plan=SPLITS)[0].violation
    assert found is not None
    assert found.name == "lease_orphaned"


def letter_after_its_checkpoint(patch: pytest.MonkeyPatch) -> None:
    set_aside = PoisonSearch._set_aside

    async def too_early(  # noqa: PLR0917 - as the method
        search: PoisonSearch,
        given: Batch | EncodedBatch,
        cause: LetterCause,
        after: ExtendedSequenceNumber,
        error: ChildError,
        stderr: tuple[str, ...],
    ) -> None:
        payload = (given if isinstance(given, Batch) else given.decoded()).payload
        await search._checkpoint(after, payload.last)
        await set_aside(search, given, cause, after, error, stderr)

    patch.setattr(PoisonSearch, "_set_aside", too_early)


def test_a_checkpoint_before_its_letter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    behaviour = Behaviour(when=When.EACH_BATCH, process_s=(0.05, 0.5))
    failures = replace(DEAD_LETTERS, poison_tries=1)
    children_plan = ChildrenPlan(behaviour=behaviour, poison_every=40)
    plan = replace(QUIET, children_plan=children_plan, failures=failures, bound_s=150.0)
    kill = AtPoint("after-letter-stored", 1, None)
    assert traced(kill, plan=plan)[0].violation is None
    letter_after_its_checkpoint(monkeypatch)
    found = traced(kill, plan=plan)[0].violation
    assert found is not None
    assert found.name == "checkpoint_never_asked"


@pytest.mark.prove
def test_fleets_come_to_each_point() -> None:
    missing = set(BASES)
    for seed in range(1, 401):
        missing -= run_plan(draw_plan("points", seed), scenario="points", seed=seed).points.keys()
        if not missing:
            return
    pytest.fail(f"in 400 runs no worker came to {sorted(missing)}")
