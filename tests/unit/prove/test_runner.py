"""Scenes are played in turn; what fails is a result; what was made is removed; the cap ends the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from kcl_prove.parts import BudgetReached, ProveError, SceneResult, Usage
from kcl_prove.runner import Played, play_all
from kcl_prove.stage import Clients, Scene, Stage
from tests.simulator.loop import run_virtual
from tests.unit.prove.accounts import RUN_ID, Clock, TinyScene, account, stage_in

pytestmark = pytest.mark.anyio


class Run:
    """One run in an account of moto's, with what it tidied after each scene."""

    def __init__(
        self, clients: Clients, folder: Path, *, most: float = 5.0, clock: Clock | None = None
    ) -> None:
        self.said: list[str] = []
        self.left_at_end_of_scenes: list[int] = []
        self.played = Played()
        self.stage, self.inventory, self.budget = stage_in(
            clients, folder, most=most, clock=clock, said=self.said
        )

    async def tidy(self) -> None:
        self.left_at_end_of_scenes.append(len(self.inventory.items))
        for item in self.inventory.items:
            self.inventory.removed(item)

    async def play(self, *scenes: Scene) -> list[tuple[str, bool, str]]:
        await play_all(scenes, self.stage, self.budget, self.tidy, self.played)
        return [(each.name, each.passed, each.left_out) for each in self.played.results]


def failing(error: Exception) -> Callable[[Stage], Awaitable[SceneResult]]:
    async def act(stage: Stage) -> SceneResult:
        raise error

    return act


async def test_scenes_are_played_in_turn_and_each_is_tidied_up(tmp_path: Path) -> None:
    with account() as clients:
        run = Run(clients, tmp_path)
        results = await run.play(TinyScene("a"), TinyScene("b", why_not="needs --java"), TinyScene("c"))
    assert results == [("a", True, ""), ("b", True, "needs --java"), ("c", True, "")]
    assert run.left_at_end_of_scenes == [1, 1]
    assert run.played.is_right
    assert "[2/3] b: left out, needs --java" in run.said
    assert run.budget.used == Usage(shard_hours=2)


async def test_a_scene_that_raises_has_failed_and_the_next_one_is_played(tmp_path: Path) -> None:
    group = ExceptionGroup("two", [ProveError("the stream is gone"), KeyError("x")])
    with account() as clients:
        run = Run(clients, tmp_path)
        results = await run.play(TinyScene("a", act=failing(group)), TinyScene("b"))
    assert results == [("a", False, ""), ("b", True, "")]
    assert run.played.results[0].notes == ("the stream is gone", "KeyError: 'x'")
    assert run.left_at_end_of_scenes == [1, 1]
    assert not run.played.is_right
    assert "the stream is gone" in (tmp_path / "a.error").read_text()


async def test_a_scene_that_lost_records_has_not_passed_whatever_it_says(tmp_path: Path) -> None:
    async def lossy(stage: Stage) -> SceneResult:
        return SceneResult("a", passed=True, written=5, delivered=4, lost=1)

    with account() as clients:
        assert await Run(clients, tmp_path).play(TinyScene("a", act=lossy)) == [("a", False, "")]


@pytest.mark.parametrize("error", [None, ProveError("hidden behind another one")])
async def test_at_the_cap_the_run_ends_with_what_it_has_shown(
    tmp_path: Path, error: ProveError | None
) -> None:
    async def spends(stage: Stage) -> SceneResult:
        try:
            stage.spend(Usage(on_demand_in_gb=1000))
        except BudgetReached:
            if error is None:
                raise
            raise error from None
        raise AssertionError("it was allowed")

    with account() as clients:
        run = Run(clients, tmp_path, most=1.0)
        results = await run.play(TinyScene("a"), TinyScene("b", act=spends), TinyScene("c"))
    assert results == [("a", True, ""), ("b", False, ""), ("c", True, "the run ended before")]
    assert "above --most 1.00" in run.played.ended_by
    assert run.played.results[1].notes == (run.played.ended_by,)
    assert run.left_at_end_of_scenes == [1, 1]
    assert not run.played.is_right


class Endless(TinyScene):
    async def play(self, stage: Stage) -> SceneResult:
        stage.spend(Usage(shard_hours=1))
        await anyio.sleep(3000)
        stage.spend(Usage(put_units=1))
        await anyio.sleep(3000)
        raise AssertionError("nobody stopped it")


def test_hours_that_begin_while_a_scene_goes_on_count_against_the_cap(tmp_path: Path) -> None:
    async def scenario() -> None:
        with account() as clients:
            run = Run(clients, tmp_path, most=0.02)
            run.budget._now_s = anyio.current_time
            assert await run.play(Endless("a")) == [("a", False, "")]
            assert run.played.seconds == pytest.approx(3600, abs=10)
            assert "above --most 0.02" in run.played.ended_by
            assert run.budget.used == Usage(shard_hours=1, put_units=1)

    run_virtual(scenario)


async def test_a_cancelled_scene_is_tidied_up(tmp_path: Path) -> None:
    async def waits(stage: Stage) -> SceneResult:
        scope.cancel()
        await anyio.sleep_forever()
        raise AssertionError("nobody comes here")

    with account() as clients:
        run = Run(clients, tmp_path)
        with anyio.CancelScope() as scope:
            await run.play(TinyScene("a", act=waits), TinyScene("b"))
    assert scope.cancelled_caught
    assert run.played.results == []
    assert run.left_at_end_of_scenes == [1]
    assert run.stage.run_id == RUN_ID
