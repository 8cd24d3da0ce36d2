"""What every adapter of the port `Table` promises."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kcl_daemon.errors import InvalidRequest, TableNotFound
from kcl_daemon.leases.row import Absent, Conditions, Equals, Present, Row, RowUpdate, Value, WriteResult
from kcl_daemon.ports import IndexState, Table, TableState
from tests.contract.table_backends import Store

pytestmark = pytest.mark.anyio

KEY = "leaseKey"

VALUES: dict[str, Value] = {
    "text": "plain",
    "empty text": "",
    "unicode": "grüße \U0001f600 日本語 \x00\x1f\"\\'",
    "integer": 7,
    "zero": 0,
    "negative": -12,
    "hash key": 2**127 // 10**3 * 10**3,
    "38 digits": int("9" * 38),
    "large": 10**125,
    "six places": Decimal("1234.567891"),
    "small": Decimal("0.000001"),
    "bytes": bytes(range(256)),
    "no bytes": b"",
    "set": frozenset({"shardId-000000000000", "shardId-000000000001"}),
    "list": ("a", 1, Decimal("0.5"), (), ("nested",)),
    "empty list": (),
    "map": {"C": (Decimal("0.25"), 17), "deeper": {"ü": frozenset({"x"}), "b": b"\x00"}},
    "empty map": {},
}
UNSTORABLE: dict[str, Value] = {
    "empty set": frozenset(),
    "39 digits": int("1" * 39),
    "too large": 10**126,
    "not a number": Decimal("NaN"),
    "nested": {"inside": (frozenset(),)},
}
HOLDING: dict[str, Conditions] = {
    "equals": (Equals("leaseCounter", 3),),
    "equals a decimal": (Equals("leaseCounter", Decimal("3.00")),),
    "equals text": (Equals("leaseOwner", "w-1"),),
    "equals a set": (Equals("parents", frozenset({"b", "a"})),),
    "absent": (Absent("checkpointOwner"),),
    "present": (Present("leaseOwner"),),
    "present key": (Present(KEY),),
    "all": (Equals("leaseCounter", 3), Absent("checkpointOwner"), Present(KEY)),
}
FAILING: dict[str, Conditions] = {
    "equals": (Equals("leaseCounter", 4),),
    "equals of another type": (Equals("leaseCounter", "3"),),
    "equals what is absent": (Equals("checkpointOwner", "w-1"),),
    "equals a smaller set": (Equals("parents", frozenset({"a"})),),
    "absent": (Absent("leaseOwner"),),
    "absent key": (Absent(KEY),),
    "present": (Present("checkpointOwner"),),
    "one of several": (Equals("leaseCounter", 3), Absent("leaseOwner")),
}
LEASE: Row = {KEY: "k", "leaseCounter": 3, "leaseOwner": "w-1", "parents": frozenset({"a", "b"})}


@pytest.fixture(params=HOLDING)
def holding(request: pytest.FixtureRequest) -> Conditions:
    return HOLDING[request.param]


@pytest.fixture(params=FAILING)
def failing(request: pytest.FixtureRequest) -> Conditions:
    return FAILING[request.param]


async def test_a_table_is_created_once(store: Store) -> None:
    table = store.new_table(True)
    assert await table.ensure()
    assert not await table.ensure()
    assert await table.scan() == []


async def test_a_table_that_does_not_exist_is_described_as_none(store: Store) -> None:
    assert await store.new_table(True).describe() is None


async def test_a_created_table_has_its_index_at_once(store: Store) -> None:
    table = store.new_table(True)
    await table.ensure()
    assert await table.describe() == TableState(IndexState.ACTIVE)


async def test_a_table_without_an_index_is_described_so(store: Store) -> None:
    table = store.new_table(False)
    await table.ensure()
    assert await table.describe() == TableState(IndexState.ABSENT)


async def test_a_table_that_exists_is_not_given_the_index_without_being_asked(store: Store) -> None:
    table = store.old_table()
    assert not await table.ensure()
    assert await table.describe() == TableState(IndexState.ABSENT)
    with pytest.raises(TableNotFound):
        await table.owned_keys("w-1")


async def test_an_added_index_knows_the_rows_that_were_there(store: Store) -> None:
    table = store.old_table()
    await table.put({KEY: "before", "leaseOwner": "w-1"})
    await table.put({KEY: "free"})
    await table.add_owner_index()
    await table.put({KEY: "after", "leaseOwner": "w-1"})
    assert await table.describe() == TableState(IndexState.ACTIVE)
    assert sorted(await table.owned_keys("w-1")) == ["after", "before"]
    await table.remove_owner_index()
    assert await table.describe() == TableState(IndexState.ABSENT)


async def test_recovery_can_be_turned_on_again_and_again(table: Table) -> None:
    await table.enable_recovery()
    await table.enable_recovery()


async def test_a_missing_table_cannot_be_changed(store: Store) -> None:
    table = store.new_table(True)
    with pytest.raises(TableNotFound):
        await table.add_owner_index()
    with pytest.raises(TableNotFound):
        await table.enable_recovery()


async def test_a_table_knows_its_name_and_key(store: Store) -> None:
    one, other = store.new_table(True), store.new_table(True)
    assert one.key_attribute == KEY
    assert one.name != other.name


async def test_a_missing_table_is_not_found(store: Store) -> None:
    table = store.new_table(True)
    with pytest.raises(TableNotFound):
        await table.get("k")
    with pytest.raises(TableNotFound):
        await table.scan()
    with pytest.raises(TableNotFound):
        await table.owned_keys("w-1")
    with pytest.raises(TableNotFound):
        await table.put(LEASE)
    with pytest.raises(TableNotFound):
        await table.update(RowUpdate("k", put={"a": 1}))
    with pytest.raises(TableNotFound):
        await table.delete("k")


async def test_a_missing_row_is_none(table: Table) -> None:
    assert await table.get("k") is None


@pytest.mark.parametrize("kind", VALUES)
async def test_a_value_comes_back_as_it_was_put(table: Table, kind: str) -> None:
    value = VALUES[kind]
    row: Row = {KEY: "k", "value": value}
    assert await table.put(row) == WriteResult(applied=True, row=row)
    found = await table.get("k")
    assert found is not None
    assert found == row
    assert type(found["value"]) is type(value) or isinstance(value, dict)
    assert await table.scan() == [row]


async def test_an_update_stores_every_kind_of_value(table: Table) -> None:
    expected: Row = {KEY: "k", **VALUES}
    assert await table.update(RowUpdate("k", put=VALUES)) == WriteResult(applied=True, row=expected)
    assert await table.get("k") == expected


@pytest.mark.parametrize("kind", VALUES)
async def test_every_kind_of_value_can_be_demanded(table: Table, kind: str) -> None:
    await table.put({KEY: "k", "value": VALUES[kind]})
    demand = RowUpdate("k", put={"seen": 1}, require=(Equals("value", VALUES[kind]),))
    assert (await table.update(demand)).applied


async def test_whole_numbers_are_read_as_int(table: Table) -> None:
    await table.put({KEY: "k", "a": Decimal("10.000000"), "b": Decimal("1E+3")})
    row = await table.get("k")
    assert row is not None
    assert row == {KEY: "k", "a": 10, "b": 1000}
    assert [type(row["a"]), type(row["b"])] == [int, int]


@pytest.mark.parametrize("kind", UNSTORABLE)
async def test_a_value_that_dynamodb_cannot_store_is_an_invalid_request(table: Table, kind: str) -> None:
    with pytest.raises(InvalidRequest):
        await table.put({KEY: "k", "value": UNSTORABLE[kind]})
    with pytest.raises(InvalidRequest):
        await table.update(RowUpdate("k", put={"value": UNSTORABLE[kind]}))
    assert await table.get("k") is None


async def test_a_key_must_be_a_text(table: Table) -> None:
    for row in ({"a": 1}, {KEY: 7}, {KEY: ""}):
        with pytest.raises(InvalidRequest):
            await table.put(row)
    with pytest.raises(InvalidRequest):
        await table.update(RowUpdate("", put={"a": 1}))


async def test_keys_may_be_any_text(table: Table) -> None:
    key = "grüße 日本語/#:'\" \U0001f600"
    await table.put({KEY: key, "a": 1})
    assert await table.get(key) == {KEY: key, "a": 1}
    assert (await table.delete(key)).applied


async def test_a_row_that_was_read_stays_as_it_was_when_the_table_changes(table: Table) -> None:
    await table.put(LEASE)
    before = await table.get("k")
    await table.update(RowUpdate("k", add={"leaseCounter": 1}))
    assert before == LEASE


async def test_a_row_changed_by_its_writer_after_the_put_stays_as_it_was_put(table: Table) -> None:
    nested: dict[str, Value] = {"C": (1,)}
    row: dict[str, Value] = {KEY: "k", "map": nested}
    await table.put(row)
    nested["C"], row["more"] = (2,), 1
    assert await table.get("k") == {KEY: "k", "map": {"C": (1,)}}


async def test_a_put_replaces_the_whole_row(table: Table) -> None:
    await table.put(LEASE)
    assert await table.put({KEY: "k", "other": 1}) == WriteResult(applied=True, row={KEY: "k", "other": 1})
    assert await table.get("k") == {KEY: "k", "other": 1}


async def test_a_put_is_applied_where_its_conditions_hold(table: Table, holding: Conditions) -> None:
    await table.put(LEASE)
    new: Row = {KEY: "k", "leaseCounter": 9}
    assert await table.put(new, holding) == WriteResult(applied=True, row=new)
    assert await table.get("k") == new


async def test_a_put_is_refused_with_the_row_that_refused_it(table: Table, failing: Conditions) -> None:
    await table.put(LEASE)
    assert await table.put({KEY: "k", "leaseCounter": 9}, failing) == WriteResult(applied=False, row=LEASE)
    assert await table.get("k") == LEASE


async def test_a_row_is_created_only_where_there_is_none(table: Table) -> None:
    assert (await table.put(LEASE, (Absent(KEY),))).applied
    assert await table.put({KEY: "k"}, (Absent(KEY),)) == WriteResult(applied=False, row=LEASE)


async def test_a_put_on_no_row_is_refused_with_no_row(table: Table) -> None:
    assert await table.put(LEASE, (Present(KEY),)) == WriteResult(applied=False, row=None)
    assert await table.get("k") is None


async def test_an_update_is_applied_where_its_conditions_hold(table: Table, holding: Conditions) -> None:
    await table.put(LEASE)
    expected: Row = {**LEASE, "new": "x"}
    written = await table.update(RowUpdate("k", put={"new": "x"}, require=holding))
    assert written == WriteResult(applied=True, row=expected)
    assert await table.get("k") == expected


async def test_an_update_is_refused_with_the_row_that_refused_it(table: Table, failing: Conditions) -> None:
    await table.put(LEASE)
    written = await table.update(RowUpdate("k", put={"new": "x"}, add={"leaseCounter": 1}, require=failing))
    assert written == WriteResult(applied=False, row=LEASE)
    assert await table.get("k") == LEASE


async def test_an_update_of_no_row_is_refused_with_no_row(table: Table) -> None:
    update = RowUpdate("k", put={"a": 1}, require=(Equals("leaseCounter", 3),))
    assert await table.update(update) == WriteResult(applied=False, row=None)
    assert await table.get("k") is None


async def test_an_update_without_conditions_creates_the_row(table: Table) -> None:
    update = RowUpdate("k", put={"a": 1}, add={"n": 2}, remove=frozenset({"gone"}))
    assert await table.update(update) == WriteResult(applied=True, row={KEY: "k", "a": 1, "n": 2})


async def test_an_update_that_demands_absence_creates_the_row(table: Table) -> None:
    update = RowUpdate("k", put={"a": 1}, require=(Absent("a"),))
    assert (await table.update(update)).row == {KEY: "k", "a": 1}
    assert await table.update(update) == WriteResult(applied=False, row={KEY: "k", "a": 1})


async def test_an_update_adds_to_what_is_there(table: Table) -> None:
    await table.put({KEY: "k", "n": 5, "d": Decimal("0.5")})
    written = await table.update(RowUpdate("k", add={"n": 2, "d": -1, "fresh": 1}))
    assert written.row == {KEY: "k", "n": 7, "d": Decimal("-0.5"), "fresh": 1}


async def test_a_sum_that_is_whole_is_an_int(table: Table) -> None:
    await table.put({KEY: "k", "n": 2**70})
    written = await table.update(RowUpdate("k", add={"n": 1}))
    assert written.row == {KEY: "k", "n": 2**70 + 1}
    assert written.row is not None
    assert type(written.row["n"]) is int


async def test_adding_to_a_text_is_an_invalid_request(table: Table) -> None:
    await table.put({KEY: "k", "t": "text"})
    with pytest.raises(InvalidRequest):
        await table.update(RowUpdate("k", add={"t": 1}))
    assert await table.get("k") == {KEY: "k", "t": "text"}


async def test_an_update_removes_attributes_and_minds_no_absent_ones(table: Table) -> None:
    await table.put(LEASE)
    written = await table.update(RowUpdate("k", remove=frozenset({"leaseOwner", "parents", "never there"})))
    assert written.row == {KEY: "k", "leaseCounter": 3}


async def test_an_update_leaves_other_attributes_alone(table: Table) -> None:
    await table.put({**LEASE, "of another program": {"kept": (1, 2)}})
    written = await table.update(RowUpdate("k", put={"leaseOwner": "w-2"}, add={"leaseCounter": 1}))
    expected: Row = {**LEASE, "leaseOwner": "w-2", "leaseCounter": 4, "of another program": {"kept": (1, 2)}}
    assert written.row == expected


async def test_reserved_words_and_odd_names_are_names_like_any_other(table: Table) -> None:
    row: Row = {KEY: "k", "name": 1, "size": 2, "a.b": 3, "#x": 4, ":y": 5, "wëird name": 6}
    await table.put(row, (Absent("name"), Absent("a.b")))
    require = (Equals("size", 2), Present("#x"), Equals("a.b", 3))
    written = await table.update(
        RowUpdate("k", put={"name": 7}, add={":y": 1}, remove=frozenset({"wëird name"}), require=require)
    )
    assert written.row == {KEY: "k", "name": 7, "size": 2, "a.b": 3, "#x": 4, ":y": 6}


@pytest.mark.parametrize(
    "update",
    [
        RowUpdate("k", put={"a": 1}, add={"a": 1}),
        RowUpdate("k", put={"a": 1}, remove=frozenset({"a"})),
        RowUpdate("k", add={"a": 1}, remove=frozenset({"a"})),
        RowUpdate("k", put={KEY: "k"}),
        RowUpdate("k", remove=frozenset({KEY})),
    ],
    ids=["put and add", "put and remove", "add and remove", "put the key", "remove the key"],
)
async def test_contradicting_changes_are_an_invalid_request(table: Table, update: RowUpdate) -> None:
    with pytest.raises(InvalidRequest):
        await table.update(update)
    assert await table.get("k") is None


async def test_a_delete_is_applied_where_its_conditions_hold(table: Table, holding: Conditions) -> None:
    await table.put(LEASE)
    assert await table.delete("k", holding) == WriteResult(applied=True, row=None)
    assert await table.get("k") is None


async def test_a_delete_is_refused_with_the_row_that_refused_it(table: Table, failing: Conditions) -> None:
    await table.put(LEASE)
    assert await table.delete("k", failing) == WriteResult(applied=False, row=LEASE)
    assert await table.get("k") == LEASE


async def test_deleting_no_row_is_fine_but_for_conditions(table: Table) -> None:
    assert await table.delete("k") == WriteResult(applied=True, row=None)
    assert await table.delete("k", (Present(KEY),)) == WriteResult(applied=False, row=None)


async def test_a_scan_gives_every_row_over_all_pages(table: Table) -> None:
    filling = "x" * 60_000  # twenty of them are more than the 1 MB of a page
    expected = [f"key-{number:02}" for number in range(20)]
    for key in expected:
        await table.put({KEY: key, "filling": filling})
    rows = await table.scan()
    assert sorted(str(row[KEY]) for row in rows) == expected
    assert all(row["filling"] == filling for row in rows)


async def test_owned_keys_follow_the_owner(table: Table) -> None:
    for key in ("a", "b", "c"):
        await table.put({KEY: key, "leaseOwner": "w-1"})
    await table.put({KEY: "d"})
    assert sorted(await table.owned_keys("w-1")) == ["a", "b", "c"]
    await table.update(RowUpdate("a", put={"leaseOwner": "w-2"}))
    await table.update(RowUpdate("b", remove=frozenset({"leaseOwner"})))
    await table.update(RowUpdate("d", put={"leaseOwner": "w-1"}))
    await table.delete("c")
    assert await table.owned_keys("w-1") == ["d"]
    assert await table.owned_keys("w-2") == ["a"]
    assert await table.owned_keys("w-3") == []


async def test_without_an_index_owned_keys_are_not_found(store: Store) -> None:
    table = store.new_table(False)
    await table.ensure()
    with pytest.raises(TableNotFound):
        await table.owned_keys("w-1")
