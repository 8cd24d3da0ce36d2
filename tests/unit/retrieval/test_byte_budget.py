"""One bound for what all shards have in hand: fair, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.errors import InvariantViolated
from kcl_daemon.retrieval.byte_budget import ByteBudget, Reservation
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock


class Shards:
    """Shards that want in."""

    def __init__(self, max_bytes: int = 100) -> None:
        self.budget = ByteBudget(LoopClock(), max_bytes)
        self.granted: list[str] = []
        self.holds: dict[str, Reservation] = {}
        self.awaited: set[str] = set()

    async def want(self, name: str, size_bytes: int, holding: Reservation | None = None) -> None:
        self.holds[name] = await self.budget.acquire(
            size_bytes, is_child_waiting=lambda: name in self.awaited, holding=holding
        )
        self.granted.append(name)


class Want(Protocol):
    def __call__(
        self, name: str, size_bytes: int, holding: Reservation | None = None, /
    ) -> Awaitable[None]: ...


def play(scene: Callable[[Shards, Want], Awaitable[None]]) -> None:
    """Play a scene; what it wants is wanted beside it, and given a moment."""

    async def whole() -> None:
        shards = Shards()
        async with anyio.create_task_group() as group:

            async def want(name: str, size_bytes: int, holding: Reservation | None = None) -> None:
                group.start_soon(shards.want, name, size_bytes, holding)
                await anyio.sleep(0.001)

            await scene(shards, want)
            group.cancel_scope.cancel()

    run_virtual(whole)


def test_whoever_is_awaited_may_fill_the_room_and_reading_ahead_half_of_it() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"a", "b"}
        await want("ahead", 50)
        await want("ahead too", 1)
        await want("a", 50)
        await want("b", 1)
        assert shards.granted == ["ahead", "a"]
        shards.holds["ahead"].release()
        await anyio.sleep(0.001)
        assert shards.granted == ["ahead", "a", "b"]
        assert shards.budget.reserved_bytes == 51

    play(scene)


def test_waiting_children_come_first_and_each_kind_in_order_of_arrival() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"first", "large", "small"}
        await want("first", 60)
        await want("ahead", 10)
        await want("large", 80)
        await want("small", 10)  # there is room for it, but it came later
        assert shards.granted == ["first"]
        shards.holds["first"].release()
        await anyio.sleep(0.001)
        assert shards.granted == ["first", "large", "small"]
        shards.holds["large"].release()
        await anyio.sleep(0.001)
        assert shards.granted[-1] == "ahead"

    play(scene)


def test_one_that_becomes_awaited_is_let_in() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        await want("first", 50)
        await want("second", 50)
        assert shards.granted == ["first"]
        shards.awaited.add("second")
        shards.budget.wake()
        await anyio.sleep(0.001)
        assert shards.granted == ["first", "second"]

    play(scene)


def test_an_answer_larger_than_the_bound_is_let_in_alone() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        await want("giant", 1000)
        await want("next", 1)
        assert shards.granted == ["giant"]
        shards.holds["giant"].resize(49)
        await anyio.sleep(0.001)
        assert shards.granted == ["giant", "next"]

    play(scene)


def test_children_that_do_not_read_cannot_stop_the_others() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"stuck", "a", "b"}
        await want("stuck", 100)
        await want("a", 10)
        await want("b", 10)
        await want("ahead", 10)
        assert shards.granted == ["stuck"]
        await anyio.sleep(11.0)
        assert shards.granted == ["stuck", "a", "b"]

    play(scene)


def test_shards_that_hold_room_and_wait_for_more_do_not_stop_each_other() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"a", "b", "more a", "more b"}
        await want("a", 50)
        await want("b", 50)
        await want("more a", 40, shards.holds["a"])
        assert shards.granted == ["a", "b"]  # what b holds may come back
        await want("more b", 40, shards.holds["b"])
        assert shards.granted == ["a", "b", "more a"]
        shards.holds["more a"].release()
        shards.holds["a"].release()
        await anyio.sleep(0.001)
        assert shards.granted == ["a", "b", "more a", "more b"]

    play(scene)


def test_where_all_that_is_reserved_waits_nobody_new_is_let_in_above_the_bound() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"a", "b", "new", "more a", "more b"}
        await want("a", 50)
        await want("b", 50)
        await want("new", 40)
        await want("more a", 40, shards.holds["a"])
        await want("more b", 40, shards.holds["b"])
        assert shards.granted == ["a", "b", "more a"]
        shards.holds["more a"].release()
        shards.holds["a"].release()
        await anyio.sleep(0.001)
        assert shards.granted == ["a", "b", "more a", "more b"]
        shards.holds["b"].release()
        await anyio.sleep(0.001)
        assert shards.granted[-1] == "new"

    play(scene)


@pytest.mark.parametrize("awaited", [True, False])
def test_one_that_goes_away_holds_nothing_and_lets_the_next_in(*, awaited: bool) -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"a", "b", "gone"} if awaited else {"a"}
        await want("a", 40)
        with anyio.move_on_after(1.0):
            await shards.want("gone", 90)
        assert shards.granted == ["a"]
        assert shards.budget.reserved_bytes == 40
        await want("b", 10)
        assert shards.granted == ["a", "b"]

    play(scene)


def test_one_that_goes_away_changes_nothing_where_more_is_held_than_the_bound() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.budget.take(150)
        shards.awaited = {"gone"}
        with anyio.move_on_after(1.0):
            await shards.want("gone", 90)
        assert (shards.granted, shards.budget.reserved_bytes) == ([], 150)

    play(scene)


def test_one_that_is_let_in_while_it_goes_away_gives_its_room_back() -> None:
    async def scene() -> None:
        shards, scope = Shards(), anyio.CancelScope()
        held = shards.budget.take(100)

        async def wanted() -> None:
            with scope:
                await shards.want("gone", 30)

        async with anyio.create_task_group() as group:
            group.start_soon(wanted)
            await anyio.sleep(0.001)
            scope.cancel()
            held.release()
        assert (shards.granted, shards.budget.reserved_bytes) == ([], 0)

    run_virtual(scene)


def test_one_byte_that_comes_back_is_enough_for_who_lacks_one() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        shards.awaited = {"a", "b"}
        await want("a", 60)
        await want("b", 41)
        assert shards.granted == ["a"]
        shards.holds["a"].resize(59)
        await anyio.sleep(0.001)
        assert shards.granted == ["a", "b"]

    play(scene)


def test_who_can_do_with_less_gives_it_up_when_somebody_has_to_wait() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        spare = shards.budget.take(60, lambda: spare.resize(10))
        shards.awaited = {"a"}
        await want("a", 90)
        assert (shards.granted, spare.size_bytes) == (["a"], 10)
        spare.release()
        assert shards.budget.reserved_bytes == 90

    play(scene)


def test_less_than_nothing_is_a_violation_and_what_others_hold_stays_counted(
    violations: list[InvariantViolated],
) -> None:
    budget = ByteBudget(LoopClock(), 100)
    budget.take(10)
    wrong = budget.take(10)
    wrong.resize(-1)
    assert (len(violations), budget.reserved_bytes) == (1, 9)
    wrong.resize(0)
    budget.change(-11)
    assert budget.reserved_bytes == -1
    wrong.resize(0)
    assert (len(violations), budget.reserved_bytes) == (2, 0)
    violations.clear()


def test_a_reservation_released_twice_counts_once() -> None:
    async def scene(shards: Shards, want: Want) -> None:
        await want("a", 40)
        shards.holds["a"].release()
        shards.holds["a"].release()
        shards.holds["a"].resize(70)
        assert shards.budget.reserved_bytes == 0

    play(scene)


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.booleans(), st.floats(0, 2), st.floats(0, 3)),
        min_size=1,
        max_size=20,
    )
)
def test_everybody_gets_in_and_nothing_is_left(visits: list[tuple[int, bool, float, float]]) -> None:
    async def scene() -> None:
        budget = ByteBudget(LoopClock(), 100)
        admitted_above: list[float] = []

        async def visit(size_bytes: int, awaited: bool, arrives_s: float, stays_s: float) -> None:
            await anyio.sleep(arrives_s)
            hold = await budget.acquire(size_bytes, is_child_waiting=lambda: awaited)
            waited_s = anyio.current_time() - arrives_s
            if waited_s >= 5.0:  # so long nobody is made to wait for room
                admitted_above.append(waited_s)
            assert budget.reserved_bytes <= 100 or admitted_above
            await anyio.sleep(stays_s)
            hold.release()

        with anyio.fail_after(100.0):
            async with anyio.create_task_group() as group:
                for each in visits:
                    group.start_soon(visit, *each)
        assert budget.reserved_bytes == 0

    run_virtual(scene)
