"""What a typed function costs over a RecordProcessor that decodes by the same decoder itself: python -m tests.benchmarks.function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time

import msgspec
import pydantic

from kcl_client import Batch, Checkpointer, Record, RecordProcessor
from kcl_client._processor import _FrameRecord
from kcl_client.testing import processor_of
from kcl_protocol.messages import CheckpointRequest

RECORDS = 100_000
RUNS = 9
MOST_US = 1.5
PAYLOAD = b'{"id": 4711, "customer": "customer-17", "amount": 12.5, "tags": ["a", "b"]}'


@dataclass(slots=True)
class Order:
    id: int
    customer: str
    amount: float
    tags: list[str]


class Packed(msgspec.Struct):
    id: int
    customer: str
    amount: float
    tags: list[str]


class Model(pydantic.BaseModel):
    id: int
    customer: str
    amount: float
    tags: list[str]


def of_order(order: Order) -> None:
    pass


def of_packed(order: Packed) -> None:
    pass


def of_model(order: Model) -> None:
    pass


def of_both(order: Packed, record: Record) -> None:
    pass


class ByHand(RecordProcessor):
    """What a user writes who decodes himself."""

    def __init__(self, decode: Callable[[bytes], object], work: Callable[..., None]) -> None:
        self._decode = decode
        self._work = work

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        decode, work = self._decode, self._work
        for record in batch:
            work(decode(record.data))


class Undecoded(RecordProcessor):
    """Neither decodes nor rejects."""

    def __init__(self, work: Callable[[Record], None]) -> None:
        self._work = work

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            self._work(record)


def of_record(record: Record) -> None:
    pass


async def _store(_request: CheckpointRequest | None, _attempts: int) -> None:
    pass


def per_record_us(processor: RecordProcessor, batch: Batch) -> float:
    began_s = process_time()
    processor.process_records(batch, Checkpointer(_store))
    return (process_time() - began_s) / len(batch) * 1e6


def compare(function: Callable[..., None], by_hand: RecordProcessor, batch: Batch) -> tuple[float, float]:
    """Microseconds a record by hand and with the function; the best of several runs, which take turns."""
    processor = processor_of(function)
    assert isinstance(processor, RecordProcessor)
    runs = [(per_record_us(by_hand, batch), per_record_us(processor, batch)) for _ in range(RUNS)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def main() -> int:
    """1: above the bound."""
    records = tuple(_FrameRecord(PAYLOAD, "key", str(number), 0, 0, None) for number in range(RECORDS))
    batch = Batch(records)
    cases: dict[str, tuple[Callable[..., None], RecordProcessor]] = {
        "dataclass": (of_order, ByHand(msgspec.json.Decoder(Order).decode, of_order)),
        "msgspec.Struct": (of_packed, ByHand(msgspec.json.Decoder(Packed).decode, of_packed)),
        "pydantic model": (of_model, ByHand(Model.model_validate_json, of_model)),
        "Record": (of_record, Undecoded(of_record)),
    }
    print(f"us a record, {RECORDS:,} records of {len(PAYLOAD)} bytes, best of {RUNS} runs")  # noqa: T201
    print(f"{'':16}{'by hand':>10}{'function':>10}{'more':>8}")  # noqa: T201
    most = 0.0
    for name, (function, by_hand) in cases.items():
        hand_us, function_us = compare(function, by_hand, batch)
        most = max(most, function_us - hand_us)
        print(f"{name:16}{hand_us:10.2f}{function_us:10.2f}{function_us - hand_us:8.2f}")  # noqa: T201
    print(f"bound: {MOST_US} us more")  # noqa: T201
    return int(most > MOST_US)


if __name__ == "__main__":
    sys.exit(main())
