"""One record is found in the text of a batch, whatever is around it."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.records.batch_text import BatchText
from kcl_daemon.records.payload import Payload
from kcl_protocol.messages import Record, RecordSchema
from tests.examples import examples

SCHEMA = RecordSchema("orders", "7f5d2f3c-1111-4222-8333-444455556666", "JSON", '{"data": "},{\\"data\\":"}')
# What could be taken for a place in a line.
NASTY = ('"sequenceNumber":"1"', '},{"data":', '}],"millisBehindLatest":', "\u00fc\\", "\U0001f600", "")


def record(place: int, data: bytes, key: str, schema: RecordSchema | None) -> Record:
    """The third of each four is of the same aggregate as the one before."""
    number, sub_number = divmod(place, 4)
    at = (4 * number + sub_number, 0) if sub_number < 2 else (4 * number + 2, sub_number - 2)
    return Record(
        b64encode(data).decode(), key, str(10**55 + at[0]), None if place % 5 == 0 else place, at[1], schema
    )


BATCHES = st.lists(
    st.tuples(st.binary(max_size=40), st.sampled_from(NASTY), st.booleans()), min_size=1, max_size=30
)


@pytest.mark.parametrize("form", ["line", "frame"])
@settings(max_examples=examples(60))
@given(rows=BATCHES, order=st.randoms(use_true_random=False))
def test_every_record_is_found_in_any_order(
    form: str, rows: list[tuple[bytes, str, bool]], order: object
) -> None:
    records = [
        record(place, data, key, SCHEMA if has_schema else None)
        for place, (data, key, has_schema) in enumerate(rows)
    ]
    text = BatchText(getattr(Payload.of(records), form)(7))
    wanted = list(records)
    order.shuffle(wanted)  # type: ignore[attr-defined]
    for each in wanted:
        assert text.find(each.sequence_number, each.sub_sequence_number) == each


@pytest.mark.parametrize("form", ["line", "frame"])
@pytest.mark.parametrize(
    ("number", "sub_number"),
    [("1", 0), (str(10**55), 1), (str(10**56), 0), ("", 0), ("x", 0), ("\u0661", 0), (str(10**55 + 1), -1)],
)
def test_a_position_that_is_not_in_the_batch_is_not_found(form: str, number: str, sub_number: int) -> None:
    records = [record(place, b"data", "key", None) for place in range(3)]
    text = BatchText(getattr(Payload.of(records), form)(None))
    assert text.find(number, sub_number) is None
    assert text.find(records[2].sequence_number, records[2].sub_sequence_number) == records[2]


def test_half_of_a_surrogate_pair_in_a_key_does_no_harm() -> None:
    odd = replace(record(1, b"data", "key", None), partition_key="\ud83d")
    text = BatchText(Payload.of([record(0, b"data", "key", None), odd]).line(None))
    assert text.find(odd.sequence_number, 0) == odd
