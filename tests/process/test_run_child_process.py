"""`kcl-daemon run-child` and `replay` with real processors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main
from kcl_daemon.records.letters import parse_letter
from kcl_local.demo.check import DIRECTORY_VARIABLE, LedgerReader
from tests.unit.consumer.letters import letter

pytestmark = pytest.mark.timeout(300)

CAREFUL = (sys.executable, "-m", "tests.process.processors.careful")
SILENT = ("/bin/sh", "-c", "cat > /dev/null")
HASTY = (
    "/bin/sh",
    "-c",
    """while read -r _; do echo '{"action":"status","responseFor":"initialize"}'; done""",
)
FAILING = ("/bin/sh", "-c", "read -r _; echo oh no >&2; exit 3")
# Answers, and never checkpoints; but for its last words it is good.
CARELESS = (
    sys.executable,
    "-u",
    "-c",
    (
        "import json, sys\nfor line in sys.stdin: print(json.dumps({'action': 'status', 'responseFor':"
        " json.loads(line)['action']}))\nif len(sys.argv) > 1: sys.exit(4)"
    ),
)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerReader:
    """What processors write down."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    return LedgerReader(tmp_path)


def invoke(*words: str, given: str = "") -> Result:
    return CliRunner().invoke(main, words, input=given)


def test_a_processor_gets_the_records_of_a_file_in_batches(tmp_path: Path, ledger: LedgerReader) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(f'{{"text":"record {number}"}}\n' for number in range(25)))
    done = invoke("run-child", "--records", str(file), "--batch", "10", "--", *CAREFUL)
    assert (done.exit_code, done.stdout) == (
        0,
        "delivered 25 of 25 records, 4 checkpoints, last at SHARD_END\n",
    )
    entries = list(ledger.new_entries())
    assert [len(entry.records) for entry in entries if entry.kind == "records"] == [10, 10, 5]
    assert entries[-1].kind == "ended"


@pytest.mark.parametrize(
    ("end", "kinds"), [("stopped", ["stopping", "lost"]), ("lost", ["checkpoint", "lost"])]
)
def test_every_end_can_be_had(ledger: LedgerReader, end: str, kinds: list[str]) -> None:
    done = invoke("run-child", "-r", "-", "--end", end, "--", *CAREFUL, given="one\ntwo\n")
    assert done.exit_code == 0
    assert done.stdout.startswith("delivered 2 of 2 records")
    assert [entry.kind for entry in ledger.new_entries()][-2:] == kinds


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (FAILING, (), "exit code 3 during initialize"),
        (HASTY, ("-r", "-"), "status"),
        (SILENT, ("--timeout", "0.2"), "did not answer initialize within 0.2 s"),
        (CARELESS, (), "answered shardEnded without a checkpoint"),
        ((*CARELESS, "x"), ("--end", "stopped"), "exited with code 4"),
        (("/no/such/program",), (), "no such file"),
    ],
    ids=["exits", "wrong status", "silent", "no last checkpoint", "exit code", "not there"],
)
def test_a_mistake_of_a_processor_is_told_in_one_line(
    command: tuple[str, ...], options: tuple[str, ...], said: str
) -> None:
    done = invoke("run-child", *options, "--", *command, given="a record\n")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("failed: ")
    assert said in done.stderr.splitlines()[-1]


# Goes on after an exception, which it prints, as amazon_kclpy does; with an argument it checkpoints.
SWALLOWING = (
    sys.executable,
    "-u",
    "-c",
    """
import json, sys, traceback
for line in sys.stdin:
    said = json.loads(line)
    if said["action"] == "processRecords":
        try:
            1 / (len(said["records"]) - 1)
        except ZeroDivisionError:
            traceback.print_exc()
    if said["action"] == "shardEnded" or (sys.argv[1:] and said["action"] == "processRecords"):
        print(json.dumps({"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None}))
        sys.stdin.readline()
    print(json.dumps({"action": "status", "responseFor": said["action"]}))
""",
)
# Logs what it has dealt with; its client ends with exceptions that it has not.
LOGGING = """
import traceback
from kcl_client import Batch, Checkpointer, RecordProcessor, run
class Logging(RecordProcessor):
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
run(Logging())
"""


def test_a_program_that_prints_an_exception_and_goes_on_without_a_checkpoint_has_failed() -> None:
    done = invoke("run-child", "-r", "-", "--batch", "2", "--", *SWALLOWING, given="a\nb\nc\nd\ne\n")
    assert done.exit_code == 1
    assert "delivered 4 of 5 records" in done.stdout
    assert "answered without a checkpoint and with a traceback on stderr" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "program",
    [(*SWALLOWING, "checkpoints"), (sys.executable, "-c", LOGGING)],
    ids=["checkpoints", "kcl_client"],
)
def test_a_traceback_alone_is_no_failure(program: tuple[str, ...]) -> None:
    done = invoke("run-child", "-r", "-", "--batch", "1", "--", *program, given="a\nb\n")
    assert (done.exit_code, done.stderr.count("Traceback")) == (0, 2)


# Rejects each record of a key, some twice, and one that it was not given.
REJECTING = (
    sys.executable,
    "-u",
    "-c",
    """
import json, sys
def reject(number):
    print(json.dumps({"action": "reject", "sequenceNumber": number, "subSequenceNumber": 7, "reason": "no"}))
    return json.loads(sys.stdin.readline())["error"]
for line in sys.stdin:
    said = json.loads(line)
    for record in said.get("records", ()):
        assert reject("1") == "IllegalArgumentException"
        if record["sequenceNumber"] == "20":
            assert [reject("20"), reject("20")] == [None, None]
    print(json.dumps({"action": "status", "responseFor": said["action"]}))
""",
)


def test_a_rejected_record_is_printed_and_written_to_the_letters_file(tmp_path: Path) -> None:
    file, rejected = tmp_path / "records.jsonl", tmp_path / "rejected.jsonl"
    file.write_bytes(b"".join(each.line() + b"\n" for each in (letter(30), letter(20))))
    words = ("run-child", "-r", str(file), "--end", "lost", "--batch", "1", "--letters", str(rejected))
    done = invoke(*words, "--", *REJECTING)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "rejected 20/7: no")
    assert done.stdout.splitlines()[1].startswith("delivered 2 of 2 records")
    (kept,) = rejected.read_bytes().splitlines()
    found = parse_letter(kept, "").letter
    assert (found.record, found.error, found.cause.value) == (letter(20).record, "no", "rejected")
    again = invoke("run-child", "-r", str(rejected), "--end", "lost", "--", *REJECTING)
    assert "delivered 1 of 1 records" in again.stdout


# With kcl_client: asks for everything first, then reads the answers.
PICKY = """
from kcl_client import Batch, Checkpointer, RecordProcessor, run
class Picky(RecordProcessor):
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            batch.reject(record, "picky")
        checkpointer.checkpoint()
run(Picky())
"""


def test_a_whole_batch_may_be_rejected_at_once(tmp_path: Path) -> None:
    file = tmp_path / "dead"
    file.write_bytes(b"".join(letter(number).line() + b"\n" for number in range(200)))
    program = (sys.executable, "-c", PICKY)
    done = invoke("run-child", "-r", str(file), "--format", "jsonl", "--end", "lost", "--", *program)
    assert (done.exit_code, done.stdout.count("rejected ")) == (0, 200)
    again = invoke("letters", "replay", str(file), "--", *program)
    assert again.exit_code == 1
    assert "200 letters: 0 done, 200 rejected, 0 failed, 0 left" in again.stdout


def test_a_line_that_is_no_record_is_a_usage_error(tmp_path: Path) -> None:
    done = invoke("run-child", "-r", "-", "--format", "jsonl", "--", *CAREFUL, given="hello\n")
    assert done.exit_code == 2
    assert "line 1: not JSON" in done.stderr
    assert "where each line is the data of a record, add --format lines" in done.stderr


@pytest.mark.usefixtures("ledger")
def test_a_recorded_conversation_can_be_replayed_and_differences_are_found(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    recorded = invoke("run-child", "-r", "-", "--transcript", str(tape), "--", *CAREFUL, given="one\ntwo\n")
    assert recorded.exit_code == 0
    again = invoke("replay-transcript", str(tape), "--", *CAREFUL)
    assert (again.exit_code, again.stdout) == (0, "as recorded: 10 messages\n")
    other = invoke("replay-transcript", str(tape), "--", *CARELESS)
    assert other.exit_code == 1
    assert (
        "line 5: it sent Status(response_for='processRecords'), recorded was CheckpointRequest"
        in other.stderr
    )
    lines = tape.read_text().splitlines()
    assert {json.loads(line)["from"] for line in lines[1:]} == {"daemon", "child"}


@pytest.mark.parametrize(
    ("command", "timeout", "said"),
    [
        (FAILING, "60", "exited"),  # in its own time: a shell has to start
        (SILENT, "0.3", "no answer within 0.3 s"),
        (("/no/such",), "0.3", "no such file"),
    ],
)
def test_a_replay_ends_with_a_child_that_does_not_answer(
    tmp_path: Path, command: tuple[str, ...], timeout: str, said: str
) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text(
        '{"about":"x","ends":"over"}\n{"from":"daemon","line":"{}"}\n'
        '{"from":"child","line":"{\\"action\\":\\"status\\",\\"responseFor\\":\\"initialize\\"}"}\n'
    )
    done = invoke("replay-transcript", str(tape), "--timeout", timeout, "--", *command)
    assert done.exit_code == 1
    assert said in done.stderr


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program"])
def test_a_program_that_is_not_there_is_reported_without_words_on_a_properties_file(program: str) -> None:
    done = invoke("run-child", "--", program)
    assert done.exit_code == 1
    assert f"failed: cannot start '{program}': no such " in done.stderr
    assert "executableName" not in done.stderr
    assert "/usr/bin" not in done.stderr
