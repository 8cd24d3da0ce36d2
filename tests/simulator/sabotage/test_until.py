"""The rules of jobs that end, seen to fail: each is broken in the daemon, and noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kcl_daemon.config.children import FailureSettings, PoisonRecordPolicy
from kcl_daemon.fleet import run_end
from kcl_daemon.fleet.run_end import RunEnd
from kcl_daemon.leases.lease import Lease
from kcl_daemon.records.payload import Payload
from kcl_daemon.retrieval.source import ShardSource
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.plans.plan import Plan, Planned, Split
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.poison import DEAD_LETTERS

Patch = Callable[[pytest.MonkeyPatch], None]


def violation() -> str | None:
    """Of two jobs one after the other, while records come and a shard splits."""
    plan = Plan(
        shards=3,
        records_per_s=20.0,
        backlog=200,
        events=(Planned(10.0, Split(0)),),
        calm_at_s=20.0,
        ends_at_s=0.0,
        bound_s=80.0,
        skew_s=0.0,
        jobs=(30.0, 20.0),
        job_workers=2,
    )
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    return None if found is None else found.name


def test_a_job_that_searches_one_bad_record_after_the_other_goes_on_and_one_that_never_ends_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each search takes many starts of a child, which take five seconds."""
    plan = Plan(
        shards=1,
        records_per_s=1.0,
        events=(),
        backlog=120,
        calm_at_s=10.0,
        ends_at_s=0.0,
        bound_s=100.0,
        skew_s=0.0,
        jobs=(5.0,),
        children_plan=ChildrenPlan(behaviour=Behaviour(), poison_every=20, import_s=(4.0, 6.0)),
        failures=FailureSettings(
            dead_letters=DEAD_LETTERS.dead_letters, poison=PoisonRecordPolicy.DEADLETTER
        ),
        child_timeout_s=20.0,
    )
    searched = run_plan(plan, scenario="sabotage", seed=1)
    assert searched.violation is None
    assert searched.virtual_s > plan.calm_at_s + plan.bound_s
    never_over(monkeypatch)
    found = run_plan(plan, scenario="sabotage", seed=1).violation
    assert found is not None
    assert found.name == "job_does_not_end"


def without_the_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Payload, "arrived_before", lambda payload, time_ms: payload)


def there_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardSource, "bounded", lambda _source, payload, *_, at_end: (payload, not at_end))


def over_too_early(patch: pytest.MonkeyPatch) -> None:
    async def run(end: RunEnd, on_end: Callable[[], None]) -> None:
        await end._context.clock.sleep(10)
        on_end()

    patch.setattr(RunEnd, "run", run)


def with_the_mark_of_the_last_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "is_at", lambda lease, until_ms: lease.is_finished or lease.reached_ms is not None)


def never_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_end, "not_there", lambda leases, until_ms, only: "something")


def test_jobs_end_where_they_should() -> None:
    assert violation() is None


@pytest.mark.parametrize(
    ("sabotage", "violations"),
    [
        (without_the_cut, {"beyond_bound"}),
        (there_too_early, {"before_bound_missing"}),
        (over_too_early, {"before_bound_missing"}),
        (with_the_mark_of_the_last_job, {"before_bound_missing"}),
        (never_over, {"job_does_not_end"}),
    ],
)
def test_a_broken_end_is_noticed(
    sabotage: Patch, violations: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    assert violation() in violations
