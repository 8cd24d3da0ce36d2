"""What every adapter of the port `Table` promises when many write at the same time."""

from __future__ import annotations

import pytest
from anyio import create_task_group

from kcl_daemon.leases.row import Absent, Equals, RowUpdate
from kcl_daemon.ports import Table

pytestmark = pytest.mark.anyio

KEY = "leaseKey"
ROUNDS = 30
WRITERS = 8


async def test_of_concurrent_updates_on_one_condition_exactly_one_wins(table: Table) -> None:
    await table.put({KEY: "k", "leaseCounter": 0})
    for counter in range(ROUNDS):
        won = await _race(table, [_take(counter, f"w-{writer}") for writer in range(WRITERS)])
        assert len(won) == 1
        row = await table.get("k")
        assert row == {KEY: "k", "leaseCounter": counter + 1, "leaseOwner": f"w-{won[0]}"}


async def test_of_concurrent_creations_exactly_one_wins(table: Table) -> None:
    for number in range(ROUNDS):
        won: list[int] = []

        async def create(writer: int, key: str = f"k-{number}", won: list[int] = won) -> None:
            if (await table.put({KEY: key, "writer": writer}, (Absent(KEY),))).applied:
                won.append(writer)

        async with create_task_group() as tasks:
            for writer in range(WRITERS):
                tasks.start_soon(create, writer)
        assert len(won) == 1
        assert await table.get(f"k-{number}") == {KEY: f"k-{number}", "writer": won[0]}


async def test_concurrent_additions_are_all_counted(table: Table) -> None:
    async with create_task_group() as tasks:
        for _ in range(WRITERS * 4):
            tasks.start_soon(table.update, RowUpdate("k", add={"n": 1}))
    assert await table.get("k") == {KEY: "k", "n": WRITERS * 4}


def _take(counter: int, owner: str) -> RowUpdate:
    return RowUpdate(
        "k",
        put={"leaseOwner": owner},
        add={"leaseCounter": 1},
        require=(Equals("leaseCounter", counter),),
    )


async def _race(table: Table, updates: list[RowUpdate]) -> list[int]:
    """Which of the updates were applied; each refused one must have seen a row that refuses it."""
    won: list[int] = []

    async def write(index: int, update: RowUpdate) -> None:
        written = await table.update(update)
        if written.applied:
            won.append(index)
        else:
            condition = update.require[0]
            assert isinstance(condition, Equals)
            assert written.row is not None
            assert written.row["leaseCounter"] != condition.value

    async with create_task_group() as tasks:
        for index, update in enumerate(updates):
            tasks.start_soon(write, index, update)
    return won
