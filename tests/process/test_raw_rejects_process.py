"""A real child, without a library, that rejects records: they are in the file when the checkpoint has passed them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

import pytest

from tests.process.daemon import PROCESSORS, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

REJECTING: Final = f"{PROCESSORS}.rejecting_raw"
SHARD: Final = "shardId-000000000000"


def test_rejected_records_are_letters_and_no_child_is_replaced(local: Local, tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {"idleTimeBetweenReadsInMillis": 200, "deadLetterDestination": f"file:{dead}"}
    texts = [f"{'bad' if number % 4 == 0 else 'good'} {number}" for number in range(40)]
    with application(local, tmp_path, "rejects", shards=1) as app:
        *_, last = (
            app.kinesis.put_record(StreamName=app.name, Data=text.encode(), PartitionKey="key")
            for text in texts
        )
        with app.daemon(REJECTING, more) as daemon:
            number = last["SequenceNumber"]
            wait_until(
                lambda: app.rows().get(SHARD, {}).get("checkpoint", {}).get("S") == number,
                "all is checkpointed",
            )
            assert set(daemon.wait_for("records_rejected", shard_id=SHARD)["reasons"]) == {"it is bad"}
            daemon.stop()
    letters = [json.loads(line) for line in dead.read_bytes().splitlines()]
    found = [base64.b64decode(letter["data"]).decode() for letter in letters]
    assert found == [text for text in texts if text.startswith("bad")]
    assert {(letter["cause"], letter["error"]) for letter in letters} == {("rejected", "it is bad")}
