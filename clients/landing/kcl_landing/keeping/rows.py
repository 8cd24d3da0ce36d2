from __future__ import annotations

from typing import Any, Final

from pyarrow import compute

from kcl_landing.log import Footer, place, said
from kcl_landing.positions import Position

_C: Final[Any] = compute


def position_problems(table: Any, footer: Footer) -> list[str]:
    """Positions must grow, in (after, last]."""
    wrong = []
    if table.num_rows != footer.rows:
        wrong.append(f"it has {table.num_rows} records, and says {footer.rows}")
    for column, expected in (("stream", footer.stream), ("shard_id", footer.shard)):
        if table.num_rows and _C.unique(table.column(column)).to_pylist() != [expected]:
            wrong.append(f"column {column} is not {expected} throughout")
    if footer.children is not None and table.num_rows:
        wrong.append("it is the end of the shard, and has records")
    if not table.num_rows or wrong:
        return wrong
    sequences = table.column("sequence_number").combine_chunks()
    if sequences.null_count or not _C.all(_C.ascii_is_decimal(sequences)).as_py():
        return ["it has a record without a sequence number"]
    if (row := _first_not_growing(table)) is not None:
        return [
            f"its records {row} and {row + 1} do not grow: {said(_at(table, row))}, {said(_at(table, row + 1))}"
        ]
    first, last = _at(table, 0), _at(table, table.num_rows - 1)
    if first <= place(footer.after) or last > place(footer.last):
        return [
            f"its records are {said(first)} to {said(last)}, and it says after {footer.after} up to {footer.last}"
        ]
    return []


def _at(table: Any, row: int) -> Position:
    sequences, subs = table.column("sequence_number"), table.column("sub_sequence_number")
    return int(sequences[row].as_py()), subs[row].as_py() or 0


def _first_not_growing(table: Any) -> int | None:
    """By texts of digits, too large for integers."""
    sequences, subs = table.column("sequence_number"), table.column("sub_sequence_number")
    lengths = _C.binary_length(sequences)
    is_greater: Any = _C.greater(subs[1:], subs[:-1])
    for column in (sequences, lengths):
        younger, older = column[1:], column[:-1]
        is_greater = _C.or_(_C.greater(younger, older), _C.and_(_C.equal(younger, older), is_greater))
    at = _C.index(is_greater, False).as_py()
    return None if at < 0 else int(at)
