"""Plays scenes in turn. A failure is the result of its scene; the next is played all the same."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from kcl_prove.parts import ProveError, SceneResult, Size, Usage
from kcl_prove.prices import Budget, total
from kcl_prove.stage import Scene, Stage

SCENE_WITHIN_S: Final = 7200.0
HOURS_EVERY_S: Final = 5.0

SIZES: Final = {
    "small": Size(records=3_000, workers=2, shards=2, seconds=8.0),
    "normal": Size(records=30_000, workers=3, shards=4, seconds=60.0),
    "large": Size(records=1_000_000, workers=6, shards=16, seconds=600.0),
}


@dataclass(slots=True)
class Played:
    """Grows while the run goes on. `ended_by`: why it ended before its end."""

    results: list[SceneResult] = field(default_factory=list[SceneResult])
    seconds: float = 0.0
    ended_by: str = ""

    @property
    def shown(self) -> list[SceneResult]:
        return [result for result in self.results if not result.left_out]

    @property
    def is_right(self) -> bool:
        return bool(self.shown) and not self.ended_by and all(result.passed for result in self.results)


def planned_usage(scenes: Sequence[Scene], size: Size) -> Usage:
    return total(scene.usage(size) for scene in scenes)


async def play_all(
    scenes: Sequence[Scene], stage: Stage, budget: Budget, tidy: Callable[[], Awaitable[None]], played: Played
) -> None:
    """`tidy` removes what a scene made, also if it is cancelled."""
    began_s = anyio.current_time()
    try:
        for number, scene in enumerate(scenes, 1):
            why = scene.left_out(stage.options) or (played.ended_by and "the run ended before")
            if why:
                played.results.append(SceneResult(scene.name, passed=True, left_out=why))
                stage.say(f"[{number}/{len(scenes)}] {scene.name}: left out, {why}")
                continue
            stage.say(f"[{number}/{len(scenes)}] {scene.name}: {scene.title} ...")
            try:
                result = await _result(scene, stage, budget)
            finally:
                with anyio.CancelScope(shield=True):
                    await tidy()
                budget.stopped()
            played.results.append(result)
            played.ended_by = budget.reached
            for line in lines_of(result):
                stage.say(f"      {line}")
    finally:
        played.seconds = anyio.current_time() - began_s


async def _result(scene: Scene, stage: Stage, budget: Budget) -> SceneResult:
    began_s = anyio.current_time()
    try:
        result = await _limited(scene, stage, budget)
    except Exception as error:  # noqa: BLE001 - whatever fails in a scene is its result
        notes = tuple(_in_words(each) for each in _leaves(error))
        (stage.folder / f"{scene.name}.error").write_text("".join(traceback.format_exception(error)), "utf-8")
        result = SceneResult(scene.name, passed=False, notes=(budget.reached,) if budget.reached else notes)
    return checked(replace(result, seconds=result.seconds or anyio.current_time() - began_s))


async def _limited(scene: Scene, stage: Stage, budget: Budget) -> SceneResult:
    results: list[SceneResult] = []
    with anyio.fail_after(SCENE_WITHIN_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_count_hours, budget)
            results.append(await scene.play(stage))
            tasks.cancel_scope.cancel()
    return results[0]


async def _count_hours(budget: Budget) -> None:
    while True:
        await anyio.sleep(HOURS_EVERY_S)
        budget.hours_begun()


def checked(result: SceneResult) -> SceneResult:
    """A scene that lost records has not passed, whatever it says."""
    faults = result.lost + result.out_of_order + result.before_parents
    return replace(result, passed=result.passed and faults == 0)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return str(error) or f"it did not end within {SCENE_WITHIN_S:g} s"
    return str(error) if isinstance(error, ProveError) else f"{type(error).__name__}: {error}"


def lines_of(result: SceneResult) -> Iterator[str]:
    verdict = "right" if result.passed else "WRONG"
    latency = (
        ""
        if result.latency_p50_ms is None or result.latency_p99_ms is None
        else f", latency p50 {result.latency_p50_ms:,.0f} ms, p99 {result.latency_p99_ms:,.0f} ms"
    )
    yield (
        f"{verdict}: {result.delivered:,} of {result.written:,} delivered, lost {result.lost:,}, "
        f"repeated {result.repeated:,}, out of order {result.out_of_order:,}{latency}, {result.seconds:.0f} s"
    )
    yield from result.notes
