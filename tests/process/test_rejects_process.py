"""Real children that reject records, over lines and frames, alone and in lanes: letters, no restart, no record lost."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import pytest

from tests.process.daemon import PROCESSORS, application, wait_until
from tests.process.local import Local
from tests.process.test_poison_process import QUICK, SHARD, letters, put_poison

pytestmark = pytest.mark.timeout(300)

REJECTING: Final = f"{PROCESSORS}.rejecting"


@pytest.mark.parametrize(("way", "lanes"), [("plain", 1), ("plain", 3), ("lambda", 1), ("singly", 1)])
def test_a_rejected_record_becomes_a_dead_letter_and_no_child_is_restarted(
    local: Local, tmp_path: Path, way: str, lanes: int
) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {**QUICK, "deadLetterDestination": f"file:{dead}", "shardConcurrency": lanes}
    with application(local, tmp_path, f"rejects-{way}-{lanes}", shards=1) as app:
        app.put(4)
        numbers = [put_poison(app, "poison 1")]
        app.put(4)
        with app.daemon(f"{REJECTING} {way}", more) as daemon:
            app.wait_done()
            numbers.append(put_poison(app, "poison 2"))
            wait_until(lambda: app.rows()[SHARD]["checkpoint"].get("S") == numbers[1], "it is checkpointed")
            assert daemon.named("child_failed") == []
            daemon.stop()
        app.assert_account(repeated=0)
    found = letters(dead)
    assert [letter["sequenceNumber"] for letter in found] == numbers
    assert [base64.b64decode(letter["data"]) for letter in found] == [b"poison 1", b"poison 2"]
    assert {letter["cause"] for letter in found} == {"rejected"}
    reason = "named in batchItemFailures" if way == "lambda" else "cannot read 'poison 1'"
    assert found[0]["error"] == reason


def test_without_a_destination_the_child_is_told_so_and_its_record_is_not_passed(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "rejects-nowhere", shards=1) as app:
        app.put(2)
        with app.daemon(f"{REJECTING} plain", QUICK) as daemon:
            app.wait_done()
            number = put_poison(app, "poison")
            daemon.wait_for("child_failed", times=2)
            said = [event["line"] for event in daemon.named("child_stderr")]
            assert any("NoDeadLetterDestination: record" in line for line in said), said
            assert app.rows()[SHARD]["checkpoint"].get("S") != number
            daemon.stop()
