"""Being called away from a wait without losing what was waited for."""

from __future__ import annotations

import anyio

from kcl_daemon.consumer.interrupts import Call, Interrupts
from tests.simulator.loop import run_virtual


async def after(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "done"


def test_an_uncalled_wait_gives_its_result() -> None:
    assert run_virtual(lambda: Interrupts().interruptible(lambda: after(1.0))) == "done"


def test_a_call_ends_the_wait_under_way_and_every_later_one() -> None:
    async def play() -> tuple[str | None, float, str | None]:
        interrupts = Interrupts()
        first: str | None = "not waited for"
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await anyio.sleep(2.0)
                interrupts.raise_to(Call.STOP)

            tasks.start_soon(call)
            first = await interrupts.interruptible(lambda: after(10.0))
        return first, anyio.current_time(), await interrupts.interruptible(lambda: after(10.0))

    assert run_virtual(play) == (None, 2.0, None)


def test_a_higher_call_outranks_a_lower_one_and_not_the_other_way() -> None:
    async def play() -> Call:
        interrupts = Interrupts()
        interrupts.raise_to(Call.LEASE_LOST)
        interrupts.raise_to(Call.STOP)
        return await interrupts.until_called()

    assert run_virtual(play) is Call.LEASE_LOST


def test_a_stir_ends_one_wait_only_even_if_it_came_before() -> None:
    async def play() -> tuple[str | None, str | None]:
        interrupts = Interrupts()
        interrupts.stir()
        return await interrupts.interruptible(lambda: after(1.0)), await interrupts.interruptible(
            lambda: after(1.0)
        )

    assert run_virtual(play) == (None, "done")


def test_what_was_ready_is_not_lost_to_a_call_that_comes_with_it() -> None:
    async def play() -> str | None:
        interrupts = Interrupts()

        async def ready() -> str:
            interrupts.raise_to(Call.STOP)
            return "taken"

        return await interrupts.interruptible(ready)

    assert run_virtual(play) == "taken"
