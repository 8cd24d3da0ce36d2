"""Both adapters of the port `Table` say the same about any history of writes, and as `leases.table` says."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.leases.row import (
    Absent,
    Condition,
    Conditions,
    Equals,
    Present,
    Row,
    RowUpdate,
    Value,
    WriteResult,
)
from kcl_daemon.ports import Table
from tests.contract.table_backends import BACKENDS, Store
from tests.examples import examples

KEY = "leaseKey"
KEYS = ("k1", "k2")
# Two attributes are always numbers, so that adding to them is never refused.
NUMBERS = ("n", "m")
OTHERS = ("a", "leaseOwner", "size")

numbers: st.SearchStrategy[Value] = st.one_of(
    st.integers(-3, 3), st.sampled_from([Decimal("0.5"), Decimal("-1.250000")])
)
others: st.SearchStrategy[Value] = st.one_of(
    st.sampled_from(["", "w-1", "w-2", "ü"]),
    st.sampled_from([b"", b"\x00"]),
    st.frozensets(st.sampled_from(["x", "y"]), min_size=1),
    st.sampled_from([(), ("w-1",), {}, {"w": ("1", 1)}]),
)


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Value]:
    row: dict[str, Value] = {name: draw(numbers) for name in draw(st.sets(st.sampled_from(NUMBERS)))}
    row.update({name: draw(others) for name in draw(st.sets(st.sampled_from(OTHERS)))})
    # DynamoDB wants texts as keys of its index.
    if not isinstance(row.get("leaseOwner", "w"), str) or row.get("leaseOwner") == "":
        row["leaseOwner"] = "w-3"
    return row


@st.composite
def conditions(draw: st.DrawFn) -> Conditions:
    names = st.sampled_from((*NUMBERS, *OTHERS, KEY))
    chosen: list[Condition] = []
    for name in draw(st.lists(names, max_size=2, unique=True)):
        value = draw(numbers if name in NUMBERS else others)
        kinds: list[Condition] = [Equals(name, value), Absent(name), Present(name)]
        chosen.append(draw(st.sampled_from(kinds)))
    return tuple(chosen)


@st.composite
def updates(draw: st.DrawFn) -> RowUpdate:
    put = draw(attributes())
    free = [name for name in NUMBERS if name not in put]
    add = {name: draw(st.integers(-2, 2)) for name in free if draw(st.booleans())}
    untouched = [name for name in (*NUMBERS, *OTHERS) if name not in put and name not in add]
    remove = frozenset(name for name in untouched if draw(st.booleans()))
    if not put and not add and not remove:
        add = {"n": 1}
    return RowUpdate(draw(st.sampled_from(KEYS)), put=put, add=add, remove=remove, require=draw(conditions()))


puts = st.tuples(st.sampled_from(KEYS), attributes(), conditions())
deletes = st.tuples(st.sampled_from(KEYS), conditions())
histories = st.lists(st.one_of(updates(), puts, deletes), min_size=1, max_size=10)
Step = RowUpdate | tuple[str, dict[str, Value], Conditions] | tuple[str, Conditions]


@pytest.fixture(params=BACKENDS[1:], ids=lambda backend: backend.name, scope="module")
def stores(request: pytest.FixtureRequest) -> Generator[list[Store], None, None]:
    with BACKENDS[0].open() as one, request.param.open() as other:
        yield [one, other]


@settings(max_examples=examples(40), deadline=None)
@given(history=histories)
def test_any_history_of_writes_has_the_same_answers_and_rows(
    stores: list[Store], history: list[Step]
) -> None:
    reported = [anyio.run(_reported, store, history) for store in stores]
    assert reported[0] == reported[1]


async def _reported(store: Store, history: list[Step]) -> tuple[list[WriteResult], list[Row], list[str]]:
    table = store.new_table(True)
    await table.ensure()
    written = [await _write(table, step) for step in history]
    rows = sorted(await table.scan(), key=lambda row: str(row[KEY]))
    return written, rows, sorted(await table.owned_keys("w-1"))


async def _write(table: Table, step: Step) -> WriteResult:
    match step:
        case RowUpdate():
            return await table.update(step)
        case (key, row, require):
            return await table.put({**row, KEY: key}, require)
        case (key, require):
            return await table.delete(key, require)
