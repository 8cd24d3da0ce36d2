"""`python -m tests.benchmarks.changes`: CPU from an answer to the child's text, for changes of a table and for Kinesis.

The records of Kinesis have the same data. Nothing is sent: what is measured is what differs.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kcl_daemon.children.platform import keep_freed_memory
from kcl_daemon.records.changes import changes_of
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.payload import Payload
from kcl_daemon.transport.kinesis import fetched

_RECORDS: Final = 1000
_ROUNDS: Final = 15
_ARN: Final = "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/2024-11-24T03:00:00.000"


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _item(number: int) -> dict[str, Any]:
    """So large that its change is about 1 KiB."""
    return {
        "id": {"S": f"order-{number:08}"},
        "number": {"N": str(number)},
        "total": {"N": "12.5"},
        "paid": {"BOOL": True},
        "tags": {"L": [{"S": "a"}, {"S": "b"}]},
        "text": {"S": "x y" * 180},
    }


def _answer() -> bytes:
    events = [
        {
            "eventID": f"{number:032x}",
            "eventName": "INSERT",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": "eu-west-1",
            "dynamodb": {
                "ApproximateCreationDateTime": 1732417201.0,
                "Keys": {"id": {"S": f"order-{number:08}"}},
                "NewImage": _item(number),
                "SequenceNumber": str(10**23 + number),
                "SizeBytes": 700,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
        }
        for number in range(_RECORDS)
    ]
    return _dumped({"NextShardIterator": "x" * 300, "Records": events})


def _answer_of_kinesis(payload: Payload) -> bytes:
    records = [
        {
            "SequenceNumber": each.sequence_number,
            "PartitionKey": f"order-{number:08}",
            "Data": each.data,
            "ApproximateArrivalTimestamp": 1732417201.0,
        }
        for number, each in enumerate(payload.decoded())
    ]
    return _dumped({"NextShardIterator": "x" * 300, "MillisBehindLatest": 0, "Records": records})


def _cost_us(work: Callable[[], object]) -> float:
    """Of a record; the best of several rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(5):
            work()
        best = min(best, time.process_time() - began)
    return best * 1e6 / 5 / _RECORDS


def _written(read: Callable[[], Payload], write: Callable[[Payload, int], bytes]) -> bytes:
    (whole,) = read().expanded(lambda record: [((record,), len(record.data))])
    return write(whole, 0)


def main() -> None:
    keep_freed_memory()
    answer = _answer()
    payload = changes_of(answer, ChangeForm.KCL1, _ARN)[0]
    of_kinesis = _answer_of_kinesis(payload)
    rows: dict[str, Callable[[], Payload]] = {"Kinesis": lambda: fetched(of_kinesis).payload}
    for form in ChangeForm:
        rows[form.value.lower()] = partial(_changes, answer, form)
    gc.freeze()
    say = sys.stdout.write
    say(f"{len(answer) // _RECORDS} bytes a change; microseconds of CPU for a record, and times Kinesis\n")
    first: list[float] = []
    for name, read in rows.items():
        works: tuple[Callable[[], object], ...] = (
            read,
            partial(_written, read, Payload.line),
            partial(_written, read, Payload.frame),
        )
        costs = list(map(_cost_us, works))
        first = first or costs
        cells = zip(("read", "line", "frame"), costs, first, strict=True)
        say(
            f"{name:8}"
            + "".join(f" {label} {cost:.2f} ({cost / of:.1f})" for label, cost, of in cells)
            + "\n"
        )


def _changes(answer: bytes, form: ChangeForm) -> Payload:
    return changes_of(answer, form, _ARN)[0]


if __name__ == "__main__":
    main()
