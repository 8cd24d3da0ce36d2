"""What a processor is handed."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_client import Batch, ExtendedSequenceNumber, Record
from kcl_protocol import messages


def record(
    data: str = "", *, approximate_arrival_timestamp: int | None = None, sub_sequence_number: int = 0
) -> Record:
    return Record(messages.Record(data, "key", "17", approximate_arrival_timestamp, sub_sequence_number))


@given(st.binary())
def test_data_is_what_the_producer_put(payload: bytes) -> None:
    assert record(b64encode(payload).decode()).data == payload


def test_data_is_decoded_once() -> None:
    one = record("AAECAw==")
    assert one.data is one.data


@pytest.mark.parametrize("text", ["YQ", "Y!Q=", "YQ==\n"])
def test_data_that_is_not_base64_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        _ = record(text).data


def test_text_takes_utf_8() -> None:
    assert record(b64encode("größe".encode()).decode()).text() == "größe"


def test_json_takes_any_value() -> None:
    assert record(b64encode(b'{"a": [1, null]}').decode()).json() == {"a": [1, None]}


def test_json_of_data_that_is_no_json_raises_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        record(b64encode(b"no").decode()).json()


def test_position_holds_both_numbers() -> None:
    assert record(sub_sequence_number=3).position == ExtendedSequenceNumber("17", 3)


def test_arrival_is_aware_and_exact_to_the_millisecond() -> None:
    one = record(approximate_arrival_timestamp=1_735_689_600_251)
    assert one.arrival == datetime(2025, 1, 1, 0, 0, 0, 251_000, tzinfo=UTC)
    assert one.arrival_ms == 1_735_689_600_251


def test_an_arrival_may_be_missing() -> None:
    assert record().arrival is None


def test_the_rest_is_passed_on() -> None:
    one = record(sub_sequence_number=2)
    assert (one.partition_key, one.sequence_number, one.sub_sequence_number) == ("key", "17", 2)
    assert repr(one) == "Record(position=17/2, partition_key='key')"


def test_a_batch_is_its_records() -> None:
    records = (record(), record())
    batch = Batch(records, 5)
    assert tuple(batch) == records
    assert len(batch) == 2
