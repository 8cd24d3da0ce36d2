"""A consumer that crashes, a fault of ours, costs its shard alone, and ever less; by a whole worker in virtual time."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from kcl_daemon.config.children import FailureSettings
from kcl_daemon.consumer.child_session import ChildRun, ChildRunOutcome
from tests.unit.consumer.poison_stage import Stage, perform, until

# The leader, who is this worker, looks every 5 to 20 seconds.
LOOK_S = 20.0


@pytest.fixture
def crashes_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When consumers crashed: each does, as long as this lasts."""

    async def run(self: ChildRun) -> ChildRunOutcome:
        await anyio.lowlevel.checkpoint()
        found_s.append(anyio.current_time())
        raise ValueError("a bug")

    found_s: list[float] = []
    monkeypatch.setattr(ChildRun, "run", run)
    return found_s


def test_each_crash_is_followed_by_a_longer_rest(crashes_s: list[float]) -> None:
    stage = Stage(failures=FailureSettings())

    async def scene() -> None:
        await until(lambda: len(crashes_s) == 10)

    perform(stage, scene)
    rests_s = [later_s - earlier_s for earlier_s, later_s in pairwise(crashes_s)]
    wanted_s = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(wanted <= rest <= wanted + LOOK_S for wanted, rest in zip(wanted_s, rests_s, strict=True)), (
        rests_s
    )
    assert [fields["rests_s"] for fields in stage.reported("consumer_crashed")][:3] == [1, 2, 4]


def test_after_long_work_the_rest_after_a_crash_is_short_again(
    crashes_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(failures=FailureSettings())
    crashing = ChildRun.run

    async def scene() -> None:
        await until(lambda: len(crashes_s) == 3)
        with monkeypatch.context() as healthy:
            healthy.setattr(ChildRun, "run", working)
            await anyio.sleep(700)
        await until(lambda: len(crashes_s) == 4)

    async def working(self: ChildRun) -> ChildRunOutcome:
        await anyio.sleep(700)
        return await crashing(self)

    perform(stage, scene)
    assert [fields["rests_s"] for fields in stage.reported("consumer_crashed")][:4] == [1, 2, 4, 1]


def test_a_stop_does_not_wait_for_the_rest(crashes_s: list[float]) -> None:
    stage = Stage(failures=FailureSettings())

    async def scene() -> None:
        await until(lambda: len(crashes_s) == 7)

    perform(stage, scene)
    assert stage.ended_s - crashes_s[-1] < 5
    assert "leaseOwner" not in stage.row
