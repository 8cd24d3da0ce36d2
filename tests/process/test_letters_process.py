"""Dead letters of a real daemon come back to a real program; a replay that is killed goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kcl_daemon.cli.letters.replay import read_receipts
from kcl_local.demo.check import DIRECTORY_VARIABLE
from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, ROOT, Application, application, wait_until
from tests.process.local import Local
from tests.process.test_poison_process import POISONED, QUICK, SEARCH_S, put_poison, service
from tests.unit.consumer.letters import letter

pytestmark = pytest.mark.timeout(300)

GOOD = ("--", *f"{PROCESSORS}.careful".split())
# Checkpoints each record, and waits a moment after it.
SLOW = """
import base64, json, sys, time
def say(**message): print(json.dumps(message), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    for record in said.get("records", ()):
        open(sys.argv[1], "a").write(record["sequenceNumber"] + "\\n")
        say(action="checkpoint", sequenceNumber=record["sequenceNumber"], subSequenceNumber=record["subSequenceNumber"])
        sys.stdin.readline()
        time.sleep(float(sys.argv[2]))
    say(action="status", responseFor=said["action"])
"""


def test_letters_of_a_daemon_come_back_to_its_program(local: Local, tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {
        **QUICK,
        "poisonRecordPolicy": "deadletter",
        "poisonRecordMaxFailures": 1,
        "deadLetterDestination": f"file:{dead}",
    }
    with application(local, tmp_path, "letters", shards=1) as app:
        number = put_poison(app, "poison 1")
        with app.daemon(POISONED, more) as daemon:
            daemon.wait_for("record_set_aside", within_s=SEARCH_S)
            last = put_poison(app, "poison 2")
            daemon.wait_for("record_set_aside", times=2, within_s=SEARCH_S)
            daemon.stop()
        file = app.write_properties("again", POISONED, more)
        assert _letters(app, "list", "-p", file).stdout.startswith("2 letters")
        shown = _letters(app, "show", "-p", file, f"{number}-0").stdout
        assert "\n  poison 1\n" in shown
        assert "cannot read 'poison 1'" in shown
        failed = _letters(app, "replay", "-p", file)
        assert failed.returncode == 1, failed.stdout
        assert "0 done, 0 rejected, 2 failed, 0 left" in failed.stdout, failed.stdout + failed.stderr
        done = _letters(app, "replay", "-p", file, *GOOD)
        assert done.returncode == 0
        assert "2 letters: 2 done, 0 rejected, 0 failed, 0 left" in done.stdout
        assert _letters(app, "replay", "-p", file).stdout.startswith("2 letters done before\n0 letters")
        deleted = _letters(app, "delete", "-p", file, "--done", f"{dead}.receipts", "--yes")
        assert deleted.stdout == "deleted 2 letters\n"
        assert dead.read_bytes() == b""
        assert app.rows()["shardId-000000000000"]["checkpoint"].get("S") == last, (
            "replays store no checkpoint"
        )


# Rejects records that begin with `poison`; with a file it takes them and writes down what they are.
PICKY = """
import hashlib, sys
from kcl_client import Batch, Checkpointer, RecordProcessor, run
class Picky(RecordProcessor):
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if len(sys.argv) > 1:
                print(hashlib.sha256(record.data).hexdigest(), record.partition_key, file=open(sys.argv[1], "a"))
            elif record.data.startswith(b"poison"):
                batch.reject(record, "not an order")
        checkpointer.checkpoint()
    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        checkpointer.checkpoint()
run(Picky())
"""


def test_a_rejected_record_of_10_mib_comes_back_from_s3_byte_for_byte(local: Local, tmp_path: Path) -> None:
    data = (b"poison\xff" + bytes(range(256)) * 40_960)[: 10 * 1024**2 - len("key")]
    program = tmp_path / "picky.py"
    program.write_text(PICKY)
    with (
        application(local, tmp_path, "letters-of-10-mib", shards=1) as app,
        service("s3", local.s3_url) as s3,
    ):
        s3.create_bucket(Bucket=app.name)
        summary = app.kinesis.describe_stream_summary(StreamName=app.name)["StreamDescriptionSummary"]
        app.kinesis.update_max_record_size(StreamARN=summary["StreamARN"], MaxRecordSizeInKiB=10_240)
        number = app.kinesis.put_record(StreamName=app.name, Data=data, PartitionKey="key")["SequenceNumber"]
        more = {**QUICK, "deadLetterDestination": f"s3://{app.name}/dead", "s3Endpoint": local.s3_url}
        executable = f"{sys.executable} {program}"
        with app.daemon(executable, more) as daemon:
            wait_until(lambda: s3.list_objects_v2(Bucket=app.name)["KeyCount"] == 2, "the letter is stored")
            daemon.stop()
        given = ("-p", app.write_properties("again", executable, more))
        (listed,) = json.loads(_letters(app, "list", *given, "--json").stdout)["letters"]
        assert (listed["sequenceNumber"], listed["cause"], listed["error"]) == (
            number,
            "rejected",
            "not an order",
        )
        again = _letters(app, "replay", *given, "--receipts", "receipts")
        assert (again.returncode, "0 done, 1 rejected, 0 failed" in again.stdout) == (1, True)
        taken = ("--delete-done", "--", sys.executable, str(program), "taken")
        done = _letters(app, "replay", *given, "--receipts", "receipts", *taken)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "taken").read_text() == f"{hashlib.sha256(data).hexdigest()} key\n"
        assert s3.list_objects_v2(Bucket=app.name)["KeyCount"] == 0


def _letters(app: Application, *words: str) -> CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**app.local.environment, DIRECTORY_VARIABLE: str(app.directory), "PYTHONPATH": path}
    return run_command("letters", *words, directory=app.directory, environment=environment)


def test_a_replay_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    dead, seen, program = tmp_path / "dead", tmp_path / "seen", tmp_path / "slow.py"
    dead.write_bytes(b"".join(letter(number).line() + b"\n" for number in range(1, 9)))
    program.write_text(SLOW)
    receipts = Path(f"{dead}.receipts")
    words = ("letters", "replay", str(dead), "--", sys.executable, "-S", str(program), str(seen))
    with subprocess.Popen(
        [sys.executable, "-m", "kcl_daemon", *words, "0.5"], stderr=subprocess.DEVNULL
    ) as killed:
        try:
            wait_until(
                lambda: receipts.exists() and len(read_receipts(receipts)) >= 2, "two letters are done"
            )
            second = run_command(*words, "0", directory=tmp_path, environment={})
            assert second.returncode == 1
            assert "another replay is using" in second.stderr
        finally:
            killed.kill()
    done = {each.rpartition("/")[2].removesuffix("-7") for each in read_receipts(receipts)}
    assert 2 <= len(done) < 8
    before = len(seen.read_text().split())
    again = run_command(*words, "0", directory=tmp_path, environment=dict(os.environ))
    assert again.returncode == 0, again.stderr
    # The program that was at work when the replay was killed may still say its letter.
    said = list(dict.fromkeys(seen.read_text().split()[before:]))
    assert said == [str(n) for n in range(1, 9) if str(n) not in done]
    assert len(read_receipts(receipts)) == 8
