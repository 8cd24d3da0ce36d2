"""Both adapters of the port `Transactions` say the same about any history of transactions."""

from __future__ import annotations

from collections.abc import Generator, Sequence

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
    RowCheck,
    RowDelete,
    RowPart,
    RowPut,
)
from kcl_daemon.ports import CommitResult
from tests.contract.table_backends import BACKENDS, Store
from tests.contract.table_pair import KEY, a_pair
from tests.examples import examples

# Each row may have a part in each table, and values from a set so small that conditions often hold.
conditions: st.SearchStrategy[Conditions] = st.lists(
    st.one_of(
        st.builds(Equals, st.just("n"), st.integers(1, 3)),
        st.builds(Absent, st.sampled_from(["n", KEY])),
        st.builds(Present, st.sampled_from(["n", KEY])),
    ),
    max_size=2,
    unique_by=lambda condition: condition.attribute,
).map(tuple[Condition, ...])


@st.composite
def transactions(draw: st.DrawFn) -> list[tuple[int, RowPart]]:
    places = draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.sampled_from(["k1", "k2"])), min_size=1, max_size=4, unique=True
        )
    )
    parts: list[tuple[int, RowPart]] = []
    for table, key in places:
        require = draw(conditions)
        whole: Row = {KEY: key, "n": draw(st.integers(1, 3))}
        kinds: list[RowPart] = [RowPut(whole, require), RowDelete(key, require)]
        if require:
            kinds.append(RowCheck(key, require))
        parts.append((table, draw(st.sampled_from(kinds))))
    return parts


@pytest.fixture(scope="module")
def stores() -> Generator[list[Store], None, None]:
    memory, dynamodb, *_ = BACKENDS  # the third has the second's transactions
    with memory.open() as one, dynamodb.open() as other:
        yield [one, other]


@settings(max_examples=examples(40), deadline=None)
@given(history=st.lists(transactions(), min_size=1, max_size=6))
def test_any_history_of_transactions_has_the_same_answers_and_rows(
    stores: list[Store], history: list[list[tuple[int, RowPart]]]
) -> None:
    reported = [anyio.run(_reported, store, history) for store in stores]
    assert reported[0] == reported[1]


async def _reported(
    store: Store, history: Sequence[Sequence[tuple[int, RowPart]]]
) -> tuple[list[CommitResult], tuple[list[Row], list[Row]]]:
    pair = await a_pair(store)
    tables = (pair.one, pair.other)
    done = [await pair.commit(*((tables[number], what) for number, what in parts)) for parts in history]
    return done, await pair.rows()
