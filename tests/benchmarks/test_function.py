"""The bound of a typed function's cost over a RecordProcessor; `python -m tests.benchmarks.function` prints the figures."""

from __future__ import annotations

import msgspec

from kcl_client import Batch
from kcl_client._processor import _FrameRecord
from tests.benchmarks.function import MOST_US, PAYLOAD, ByHand, Packed, compare, of_packed


def test_a_typed_function_costs_no_more_than_its_bound() -> None:
    batch = Batch(tuple(_FrameRecord(PAYLOAD, "key", str(number), 0, 0, None) for number in range(10_000)))
    by_hand = ByHand(msgspec.json.Decoder(Packed).decode, of_packed)
    hand_us, function_us = compare(of_packed, by_hand, batch)
    assert function_us - hand_us <= MOST_US
