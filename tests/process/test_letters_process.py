"""Dead letters of a real daemon come back to a real program; a replay that is killed goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kcl_daemon.cli.letters.receipts import read_receipts
from kcl_local.demo.check import DIRECTORY_VARIABLE
from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local
from tests.process.test_poison_process import POISONED, QUICK, SEARCH_S, put_poison
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
        assert (failed.returncode, "0 done, 0 rejected, 2 failed, 0 left" in failed.stdout) == (1, True)
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


def _letters(app: Application, *words: str) -> CompletedProcess[str]:
    environment = {**app.local.environment, DIRECTORY_VARIABLE: str(app.directory)}
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
    assert seen.read_text().split()[before:] == [str(n) for n in range(1, 9) if str(n) not in done]
    assert len(read_receipts(receipts)) == 8
