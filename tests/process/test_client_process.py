"""Real programs written with the client, over real pipes: what users see when they run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest

from kcl_client import EXIT_PROTOCOL_ERROR, EXIT_USER_ERROR
from kcl_protocol.codec import Echo, Stray, decode_child_line, encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    Reject,
    RejectAnswer,
    ShardEnded,
    ShutdownRequested,
    Status,
)

pytestmark = pytest.mark.timeout(300)

DEADLINE_S = 90
INITIALIZE = Initialize("shardId-0", "TRIM_HORIZON", 0)
BATCH = ProcessRecords([Record("YQ==", "a", "1"), Record("Yg==", "b", "2")], 0)
STORED = CheckpointAnswer(None, None, None)
FORMS = pytest.mark.parametrize("form", ["plain", "async"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program did."""

    said: list[ChildMessage | Echo | Stray]
    stray: bytes
    stderr: str
    code: int

    @property
    def statuses(self) -> list[str | None]:
        return [message.response_for for message in self.said if isinstance(message, Status)]


def environment(**changes: str) -> dict[str, str]:
    """Ours without what would change how Python buffers and decodes."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))
    }
    return inherited | changes


def write_program(folder: Path, form: str, body: str, *, methods: str = "") -> Path:
    """A program whose `process_records` is `body`; `~` before a word stands for `async` or `await`."""
    text = f"""
import os, subprocess, sys, time
from kcl_client import *
class Program({"RecordProcessor" if form == "plain" else "AsyncRecordProcessor"}):
    ~def process_records(self, batch, checkpointer):
{indent(body, " " * 8)}
{indent(methods, " " * 4)}
run(Program())
"""
    plain = form == "plain"
    text = text.replace("~def", "def" if plain else "async def").replace("~", "" if plain else "await ")
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    return path


def outcome(stdout: bytes, stderr: bytes, code: int) -> Outcome:
    lines = [line for line in stdout.splitlines() if line.strip()]
    said = [decode_child_line(line) for line in lines]
    stray = b"\n".join(
        line for line, message in zip(lines, said, strict=True) if isinstance(message, Stray | Echo)
    )
    return Outcome(said, stray, stderr.decode("utf-8", "replace"), code)


def run_program(
    path: Path, *said: DaemonMessage | bytes, locale: str = "C.UTF-8", **variables: str
) -> Outcome:
    """Everything the daemon says is in the pipe beforehand; the child takes it when it is its turn to listen."""
    spoken = b"".join(message if isinstance(message, bytes) else encode(message) for message in said)
    done = subprocess.run(
        [sys.executable, str(path)],
        input=spoken,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
        env=environment(LC_ALL=locale, **variables),
    )
    return outcome(done.stdout, done.stderr, done.returncode)


@FORMS
def test_a_shard_is_read_to_its_end(tmp_path: Path, form: str) -> None:
    program = write_program(tmp_path, form, "~checkpointer.checkpoint()")
    result = run_program(program, INITIALIZE, BATCH, STORED, ShardEnded(), STORED)
    assert result.said == [
        Status("initialize"),
        CheckpointRequest(),
        Status("processRecords"),
        CheckpointRequest(),
        Status("shardEnded"),
    ]
    assert (result.code, result.stderr) == (0, "")


@FORMS
@pytest.mark.parametrize(
    "output",
    [
        "print('stray')",
        'print(\'{"action":"status","responseFor":"processRecords"}\', \'stray\', end=\'\')',
        "sys.stdout.write('stray')",
        "sys.__stdout__.buffer.write(b'stray')",
        "os.write(1, b'stray')",
        "subprocess.run(['echo', 'stray'], check=True)",
        "os.system('echo stray')",
        "subprocess.Popen(['sh', '-c', 'echo stray; exec 1>&-'], close_fds=False).wait()",
    ],
)
def test_nothing_that_user_code_prints_reaches_the_daemon(tmp_path: Path, form: str, output: str) -> None:
    program = write_program(tmp_path, form, f"{output}\n~checkpointer.checkpoint()")
    result = run_program(program, INITIALIZE, BATCH, STORED, LeaseLost())
    assert result.stray == b""
    assert result.statuses == ["initialize", "processRecords", "leaseLost"]
    assert "stray" in result.stderr
    assert result.code == 0


def test_text_printed_before_run_goes_to_stderr_and_not_into_the_protocol(tmp_path: Path) -> None:
    program = write_program(tmp_path, "plain", "pass")
    program.write_text("print('early', end='')\n" + program.read_text(encoding="utf-8"), encoding="utf-8")
    result = run_program(program, INITIALIZE)
    assert (result.stray, result.statuses, result.stderr) == (b"", ["initialize"], "early")


def test_stdin_is_empty_for_user_code_and_its_programs(tmp_path: Path) -> None:
    body = """
print(os.path.samestat(os.fstat(0), os.stat(os.devnull)))
print([sys.stdin.read(), subprocess.run(['cat'], capture_output=True).stdout])
"""
    result = run_program(write_program(tmp_path, "plain", body), INITIALIZE, BATCH, LeaseLost())
    assert result.stderr == "True\n['', b'']\n"
    assert result.statuses == ["initialize", "processRecords", "leaseLost"]


@FORMS
def test_an_exception_ends_the_program_without_a_status(tmp_path: Path, form: str) -> None:
    program = write_program(tmp_path, form, "raise LookupError('mine')")
    result = run_program(program, INITIALIZE, BATCH, BATCH)
    assert result.code == EXIT_USER_ERROR == 70
    assert result.statuses == ["initialize"]
    assert "Traceback" in result.stderr
    assert f"{program}" in result.stderr
    assert "LookupError: mine" in result.stderr
    assert "processRecords is not done" in result.stderr


@FORMS
def test_the_programs_own_exit_code_stands(tmp_path: Path, form: str) -> None:
    result = run_program(write_program(tmp_path, form, "sys.exit(9)"), INITIALIZE, BATCH)
    assert (result.code, result.statuses, result.stderr) == (9, ["initialize"], "")


@FORMS
def test_a_daemon_that_is_not_understood_has_an_exit_code_of_its_own(tmp_path: Path, form: str) -> None:
    result = run_program(write_program(tmp_path, form, "pass"), INITIALIZE, b'{"action":"dance"}\n')
    assert result.code == EXIT_PROTOCOL_ERROR == 76
    assert "dance" in result.stderr
    assert "Traceback" not in result.stderr


@FORMS
def test_end_of_input_ends_the_program_in_order(tmp_path: Path, form: str) -> None:
    result = run_program(write_program(tmp_path, form, "pass"), INITIALIZE, BATCH)
    assert (result.code, result.statuses, result.stderr) == (0, ["initialize", "processRecords"], "")


@FORMS
def test_end_of_input_in_a_checkpoint_ends_the_program_in_order(tmp_path: Path, form: str) -> None:
    body = "try:\n    ~checkpointer.checkpoint()\nfinally:\n    print('cleaned up')"
    result = run_program(write_program(tmp_path, form, body), INITIALIZE, BATCH)
    assert (result.code, result.statuses, result.stderr) == (0, ["initialize"], "cleaned up\n")


@FORMS
def test_several_checkpoints_in_a_batch_get_their_own_answers(tmp_path: Path, form: str) -> None:
    body = """
for record in (*batch, *batch):
    try:
        ~checkpointer.checkpoint(record, attempts=1)
        print("stored")
    except CheckpointError as error:
        print(type(error).__name__)
"""
    answers: Sequence[CheckpointAnswer] = [
        CheckpointAnswer("1", 0, error)
        for error in (None, "ThrottlingException", "IllegalArgumentException", "Odd")
    ]
    result = run_program(write_program(tmp_path, form, body), INITIALIZE, BATCH, *answers, LeaseLost())
    assert result.stderr.split() == [
        "stored",
        "CheckpointThrottled",
        "CheckpointIllegalArgument",
        "UnknownCheckpointError",
    ]
    assert result.statuses == ["initialize", "processRecords", "leaseLost"]


@FORMS
def test_a_line_of_20_mb_is_taken(tmp_path: Path, form: str) -> None:
    payload = os.urandom(1_000_000)
    data = b64encode(payload).decode()
    batch = ProcessRecords([Record(data, "key", str(number)) for number in range(15)], 0)
    body = "import hashlib\nprint(len(batch), sum(len(r.data) for r in batch), len({r.data for r in batch}))"
    assert len(encode(batch)) > 20_000_000
    result = run_program(write_program(tmp_path, form, body), INITIALIZE, batch, LeaseLost())
    assert result.stderr == "15 15000000 1\n"
    assert result.statuses == ["initialize", "processRecords", "leaseLost"]


@FORMS
@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_every_character_survives_every_locale(tmp_path: Path, form: str, locale: str) -> None:
    key = 'größe \u2028 \U0001f600 " \\'
    data = b64encode(key.encode()).decode()
    body = """
for record in batch:
    assert record.text() == record.partition_key
    print(ascii(record.partition_key))
    print(record.partition_key)
"""
    batch = ProcessRecords([Record(data, key, "1")], 0)
    raw = f'{{"action":"processRecords","records":[{{"data":"{data}","partitionKey":"größe \u2028 \U0001f600 \\" \\\\","sequenceNumber":"2"}}]}}\n'
    result = run_program(
        write_program(tmp_path, form, body), INITIALIZE, batch, raw.encode(), LeaseLost(), locale=locale
    )
    assert result.statuses == ["initialize", "processRecords", "processRecords", "leaseLost"]
    assert result.stderr.count(ascii(key)) == 2


def test_a_print_that_the_locale_cannot_spell_is_no_error(tmp_path: Path) -> None:
    program = write_program(tmp_path, "plain", "print('\U0001f600')")
    result = run_program(program, INITIALIZE, BATCH, PYTHONIOENCODING="ascii")
    assert (result.code, result.stderr) == (0, "\\U0001f600\n")


def test_an_error_that_stderr_cannot_spell_is_still_an_error(tmp_path: Path) -> None:
    program = write_program(tmp_path, "plain", "raise ValueError('\U0001f600')")
    assert run_program(program, INITIALIZE, BATCH, locale="C").code == EXIT_USER_ERROR


def test_without_a_stderr_output_goes_nowhere(tmp_path: Path) -> None:
    program = write_program(tmp_path, "plain", "os.write(1, b'stray')\nos.system('echo stray')")
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" "$1" 2>&-', sys.executable, str(program)],
        input=encode(INITIALIZE) + encode(BATCH),
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
        env=environment(),
    )
    result = outcome(done.stdout, b"", done.returncode)
    assert (result.stray, result.statuses, result.code) == (b"", ["initialize", "processRecords"], 0)


def test_a_running_start_comes_from_a_file_as_well(tmp_path: Path) -> None:
    program = write_program(tmp_path, "async", "~checkpointer.checkpoint()")
    transcript = tmp_path / "transcript"
    transcript.write_bytes(b"".join(encode(message) for message in (INITIALIZE, BATCH, STORED, LeaseLost())))
    with transcript.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, str(program)], stdin=stream, capture_output=True, timeout=DEADLINE_S, check=False
        )
    assert outcome(done.stdout, done.stderr, done.returncode).statuses[-1] == "leaseLost"


@FORMS
def test_a_forked_copy_does_not_hide_the_end_from_the_daemon(tmp_path: Path, form: str) -> None:
    body = """
copy = os.fork()
if copy == 0:
    while True:
        time.sleep(60)
with open("copy.pid", "w") as file:
    file.write(str(copy))
raise LookupError
"""
    program = write_program(tmp_path, form, body)
    try:
        with (tmp_path / "log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, str(program)],
                input=encode(INITIALIZE) + encode(BATCH),
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=DEADLINE_S,
                check=False,
                cwd=tmp_path,
                env=environment(),
            )
    finally:
        os.kill(int((tmp_path / "copy.pid").read_text()), signal.SIGKILL)
    assert done.returncode == EXIT_USER_ERROR


@contextmanager
def started(program: Path) -> Generator[subprocess.Popen[bytes]]:
    """The program as a child of ours; it does not outlive the block."""
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@FORMS
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_an_interrupt_is_left_to_the_daemon_and_termination_is_not(
    tmp_path: Path, form: str, number: signal.Signals, code: int
) -> None:
    program = write_program(tmp_path, form, "pass")
    with started(program) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(encode(INITIALIZE))
        child.stdin.flush()
        assert child.stdout.readline() == b"\n"
        assert b"initialize" in child.stdout.readline()
        child.send_signal(number)
        rest, _ = child.communicate(encode(LeaseLost()), timeout=DEADLINE_S)
    assert child.returncode == code
    assert (b"leaseLost" in rest) == (code == 0)


def test_tasks_live_between_messages_and_end_with_the_program(tmp_path: Path) -> None:
    methods = """
async def initialize(self, start):
    import asyncio
    self.task = asyncio.create_task(self.live())
async def live(self):
    import asyncio
    try:
        os.write(2, b"alive\\n")
        await asyncio.Event().wait()
    finally:
        os.write(2, b"cancelled\\n")
"""
    program = write_program(tmp_path, "async", "pass", methods=methods)
    with started(program) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(encode(INITIALIZE))
        child.stdin.flush()
        # Written while the client waits for the next message: nothing else has been said.
        assert child.stderr.readline() == b"alive\n"
        _, rest = child.communicate(encode(ShutdownRequested()), timeout=DEADLINE_S)
    assert (rest, child.returncode) == (b"cancelled\n", 0)


def test_the_start_of_a_plain_program_loads_no_asyncio(tmp_path: Path) -> None:
    body = "print(sorted({'asyncio', 'logging', 'subprocess', 'anyio'} & set(sys.modules)))"
    program = write_program(tmp_path, "plain", body)
    program.write_text(program.read_text().replace("import os, subprocess, sys, time", "import sys"))
    assert run_program(program, INITIALIZE, BATCH).stderr == "[]\n"


REJECTING = """
for record in batch:
    batch.reject(record, f"bad {record.text()}")
~checkpointer.checkpoint()
batch.pause(0.25)
"""
LETTERS = (RejectAnswer("1", 0, None), RejectAnswer("2", 0, None))


@FORMS
def test_rejected_records_are_asked_for_before_the_checkpoint_and_a_pause_comes_with_the_answer(
    tmp_path: Path, form: str
) -> None:
    program = write_program(tmp_path, form, REJECTING)
    result = run_program(program, INITIALIZE, BATCH, *LETTERS, STORED, LeaseLost(), KCL_REJECTS="1")
    assert result.said == [
        Status("initialize"),
        Reject("1", 0, "bad a"),
        Reject("2", 0, "bad b"),
        CheckpointRequest(),
        Status("processRecords", pause_ms=250),
        Status("leaseLost"),
    ]
    assert (result.code, result.stderr) == (0, "")


@FORMS
def test_a_refused_reject_ends_the_program_with_what_the_daemon_says(tmp_path: Path, form: str) -> None:
    refused = RejectAnswer("2", 0, "NoDeadLetterDestination", "set deadLetterDestination")
    program = write_program(tmp_path, form, REJECTING)
    result = run_program(program, INITIALIZE, BATCH, LETTERS[0], refused, STORED, KCL_REJECTS="1")
    assert (result.code, result.statuses) == (EXIT_USER_ERROR, ["initialize"])
    assert "NoDeadLetterDestination: record 2: set deadLetterDestination" in result.stderr
    assert CheckpointRequest() not in result.said


@FORMS
def test_a_daemon_that_does_not_offer_rejects_is_not_asked(tmp_path: Path, form: str) -> None:
    result = run_program(write_program(tmp_path, form, REJECTING), INITIALIZE, BATCH)
    assert (result.code, result.said) == (EXIT_USER_ERROR, [Status("initialize")])
    assert "RejectError: this daemon takes no rejects: KCL_REJECTS is not in the environment" in result.stderr


@FORMS
def test_a_pause_under_another_daemon_is_waited_for_in_the_program(tmp_path: Path, form: str) -> None:
    body = "batch.pause(0.3)\nprint(time.monotonic())"
    methods = "~def lease_lost(self):\n    print(time.monotonic())"
    result = run_program(write_program(tmp_path, form, body, methods=methods), INITIALIZE, BATCH, LeaseLost())
    assert result.said == [Status("initialize"), Status("processRecords"), Status("leaseLost")]
    began_s, ended_s = map(float, result.stderr.split())
    assert ended_s - began_s >= 0.3


def test_a_rejected_single_record_belongs_to_the_batch_that_is_open(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import asyncio
from kcl_client import *
class Program(AsyncRecordProcessor):
    async def process_record(self, record):
        await asyncio.sleep(0.1)
        raise RejectRecord(f"bad {record.text()}")
run(Program(), concurrency=2)
""")
    offered = {"KCL_REJECTS": "1", "KCL_FINISH_BATCHES": "true"}
    result = run_program(program, INITIALIZE, BATCH, *LETTERS, ShardEnded(), STORED, **offered)
    assert result.said == [
        Status("initialize"),
        Reject("1", 0, "bad a"),
        Reject("2", 0, "bad b"),
        Status("processRecords"),
        CheckpointRequest(),
        Status("shardEnded"),
    ]
    assert (result.code, result.stderr) == (0, "")
    del offered["KCL_FINISH_BATCHES"]
    result = run_program(program, INITIALIZE, BATCH, ShardEnded(), **offered)
    assert (result.code, result.said) == (EXIT_USER_ERROR, [Status("initialize"), Status("processRecords")])
    assert "the daemon has no deadLetterDestination" in result.stderr
