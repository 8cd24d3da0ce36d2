"""`kcl-daemon letters` on files: what is listed, shown and deleted, and the receipts."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import ChildOptions
from kcl_daemon.cli import main
from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.letters.replay import LetterReplay, Receipts, ReplayOptions, read_receipts
from kcl_daemon.cli.letters.show import data_lines
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.destinations import file as destination
from kcl_daemon.destinations.file import DeadLetterFile, StoredLines
from kcl_daemon.errors import DeadLetterNotStored, LettersUnusable
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_daemon.records.letters import BadLetter, BadPlace, Outcome, StoredLetter, in_order, parse_letter
from kcl_daemon.system import SystemClock
from tests.unit.at_point import killed_at
from tests.unit.consumer.letters import LETTER, letter
from tests.unit.fakes import MemoryLog

APP = """executableName = cat
streamName = orders
applicationName = billing
regionName = us-east-1
"""


def invoke(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["letters", *words], input=given)


def write(path: Path, *letters: DeadLetter | bytes) -> Path:
    path.write_bytes(b"".join((each if isinstance(each, bytes) else each.line()) + b"\n" for each in letters))
    return path


async def nowhere(stored: StoredLetter) -> DeadLetter:
    if stored.data_at is None:
        return stored.letter
    raise BadLetter(f"{stored.data_at} is not there")


async def scanned(source: StoredLines) -> list[StoredLetter | BadPlace]:
    return [found async for found in source.scan()]


def heads(source: StoredLines) -> list[StoredLetter]:
    found = anyio.run(scanned, source)
    return [each for each in found if isinstance(each, StoredLetter)]


def left(path: Path) -> list[int]:
    return [int(each.letter.record.sequence_number) for each in heads(StoredLines(path, nowhere))]


def test_letters_are_counted_and_listed_in_order(tmp_path: Path) -> None:
    rejected = replace(letter(2), cause=LetterCause.REJECTED, error="no\x1b[31m order")
    file = write(tmp_path / "dead", letter(10), letter(1), rejected, letter(1))
    done = invoke("list", f"file:{file}")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"3 letters, 18 B, in file:{file}"
    assert [line.split()[0] for line in lines if line.startswith("000000000003-")] == [
        f"000000000003-{number}-7" for number in (1, 2, 10)
    ]
    assert "no\\x1b[31m order" in done.stdout
    assert [line.split()[4] for line in lines if line.startswith(("failed", "rejected"))] == ["2", "1"]
    document = json.loads(invoke("list", str(file), "--json", "--cause", "rejected").stdout)
    assert [each["sequenceNumber"] for each in document["letters"]] == ["2"]
    assert document["counts"][0]["letters"] == 1


def test_lists_can_be_narrowed(tmp_path: Path) -> None:
    other = replace(letter(5), shard_id="shardId-000000000009", set_aside_ms=1_000)
    file = str(write(tmp_path / "dead", letter(1), other))

    def count(*words: str) -> str:
        return invoke("list", file, *words).stdout.split()[0]

    assert count("--shard", "shardId-000000000009") == "1"
    assert count("--since", "2020-01-01T00:00:00Z") == "1"
    assert count("--since", "1000000") == "1"
    assert count("--since", "0.5") == "2"
    shown = invoke("list", file, "--limit", "1").stdout
    assert shown.splitlines()[-1] == "1 more; --limit 2 shows all"
    assert invoke("list", file, "--since", "LATEST").exit_code == 2


def test_a_line_that_is_no_letter_is_named_and_skipped(tmp_path: Path) -> None:
    file = write(tmp_path / "dead", b"hello", b"", letter(1), b'{"shardId":"x"}')
    done = invoke("list", str(file))
    assert done.exit_code == 1
    assert done.stdout.startswith("1 letter,")
    first, second = done.stderr.splitlines()
    assert first.startswith("line 1: not JSON")
    assert second == "line 4: it has no partitionKey, sequenceNumber: not a dead letter; skipped"


def test_a_line_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "_LINE_BYTES_MOST", 1000)
    file = write(tmp_path / "dead", b"x" * 5000, letter(1), b"y" * 1001, letter(2))
    done = invoke("list", str(file))
    assert done.stdout.startswith("2 letters")
    assert "line 1: longer than 1000 bytes" in done.stderr
    assert "line 3: longer than 1000 bytes" in done.stderr
    assert invoke("delete", str(file), "--key", "1-7", "--yes").exit_code == 1
    assert left(file) == [2]
    assert file.read_bytes().startswith(b"x" * 5000 + b"\n" + b"y" * 1001 + b"\n{")


def test_one_letter_is_shown_with_data_and_stderr(tmp_path: Path) -> None:
    file = str(write(tmp_path / "dead", LETTER, letter(1)))
    done = invoke("show", file, LETTER.key)
    assert done.exit_code == 0
    assert "\n  poison\n" in done.stdout
    assert "\n  Traceback\n" in done.stdout
    assert f"replay file:{file} --key {LETTER.key} -- PROGRAM" in done.stdout
    assert invoke("show", file, "4951-7", "--raw").stdout_bytes == b"poison"
    missing = invoke("show", file, "4952-7")
    assert missing.exit_code == 2
    assert "no letters have the key 4952-7; letters list shows the keys" in missing.stderr
    several = replace(LETTER, application_name="other")
    write(Path(file), LETTER, several)
    assert "2 letters have the key 4951-7: billing/" in invoke("show", file, "4951-7").stderr


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", [""]),
        ("h\u00e9\n\tyou".encode(), ["h\u00e9", "\tyou"]),
        (b"\x00\xffA", ["00 ff 41                                         ..A"]),
        (b"\x1b[31m", ["1b 5b 33 31 6d                                   .[31m"]),
    ],
)
def test_data_is_text_if_it_can_be_printed(data: bytes, lines: list[str]) -> None:
    assert list(data_lines(data)) == lines


def test_long_data_is_cut() -> None:
    assert list(data_lines(b"x" * 2005))[-1] == "... 5 more bytes; --raw writes all"
    assert list(data_lines(b"\xff" * 300))[-1] == "... 44 more bytes; --raw writes all"


def test_the_source_may_come_from_the_properties(tmp_path: Path) -> None:
    properties = tmp_path / "app.properties"
    file = write(tmp_path / "dead", LETTER)
    properties.write_text(f"{APP}poisonRecordPolicy = DEADLETTER\ndeadLetterDestination = file:{file}\n")
    assert invoke("list", "-p", str(properties)).stdout.startswith("1 letter")
    assert "\n  poison\n" in invoke("show", "-p", str(properties), LETTER.key).stdout
    properties.write_text(APP)
    assert "has no deadLetterDestination; give SOURCE" in invoke("list", "-p", str(properties)).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list"], "no letters given"),
        (["list", "sns:arn:aws:sns:eu-west-1:111122223333:t"], "subscribe an SQS queue"),
        (["list", "s3:///x"], "not the name of a bucket"),
        (["list", "sqs:nothing"], "sqs:nothing: "),
        (["show", "a", "b", "c"], "give SOURCE and KEY"),
        (["delete", "a"], "give one of --key KEY, --all and --done RECEIPTS"),
        (["delete", "a", "--all", "--key", "k"], "give one of"),
        (["delete", "kinesis:dead", "--all"], "Kinesis deletes no records"),
        (["delete", "a", "--done", "/no/such"], "/no/such: No such file"),
        (["replay", "a"], "no program given"),
        (["replay", "kinesis:dead", "--delete-done", "--", "cat"], "Kinesis deletes no records"),
        (["replay", "s3://bucket/p", "--", "cat"], "give --receipts FILE (or --delete-done)"),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str) -> None:
    done = invoke(*words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_file_that_is_not_there_is_one_line() -> None:
    done = invoke("list", "/no/such")
    assert (done.exit_code, done.stderr) == (
        1,
        "kcl-daemon letters list: /no/such cannot be read: No such file or directory\n",
    )


def test_letters_are_deleted_with_all_their_copies(tmp_path: Path) -> None:
    file = write(tmp_path / "dead", letter(1), letter(2), b"not one", letter(1), letter(3))
    file.chmod(0o640)
    assert invoke("delete", str(file), "--key", "1-7", given="n\n").exit_code == 1
    assert left(file) == [1, 2, 1, 3]
    done = invoke("delete", str(file), "--key", "1-7", given="y\n")
    assert "deleted 1 letter\n" in done.stdout
    assert done.exit_code == 1, "something in the file is no letter"
    assert left(file) == [2, 3]
    assert b"not one" in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert invoke("delete", str(file), "--all", "--yes").stdout == "deleted 2 letters\n"
    assert file.read_bytes() == b"not one\n"


def test_letters_done_by_their_receipts_are_deleted_and_failed_ones_kept(tmp_path: Path) -> None:
    file = write(tmp_path / "dead", letter(1), letter(2), letter(3))
    first, second, _ = heads(StoredLines(file, nowhere))
    receipts = tmp_path / "receipts"
    with Receipts.opened(receipts) as opened:
        opened.write([first], Outcome.DONE, "", 1)
        opened.write([second], Outcome.FAILED, "no", 1)
    assert invoke("delete", str(file), "--done", str(receipts), "--yes").exit_code == 0
    assert left(file) == [2, 3]


def test_a_link_stays_one(tmp_path: Path) -> None:
    file = write(tmp_path / "dead", letter(1), letter(2))
    link = tmp_path / "link"
    link.symlink_to(file)
    invoke("delete", str(link), "--key", "1-7", "--yes")
    assert link.is_symlink()
    assert left(file) == [2]


def test_letters_appended_during_a_deletion_are_kept(tmp_path: Path) -> None:
    """An append may wait for the lock of a file that is then replaced."""
    file = write(tmp_path / "dead", *map(letter, range(1, 31)))

    async def append() -> None:
        daemon = DeadLetterFile(file)
        for number in range(100, 200):
            await daemon.store(letter(number))

    async def delete() -> None:
        for _ in range(15):
            source = StoredLines(file, nowhere)
            found = [each async for each in source.scan()]
            old = [each for each in found if isinstance(each, StoredLetter) and len(each.position_text) < 5]
            await source.delete(old[:2])

    async def both() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            tasks.start_soon(append)
            tasks.start_soon(delete)

    anyio.run(both)
    assert sorted(left(file)) == sorted([*range(100, 200), *range(100, 200)])


def test_a_file_that_was_changed_is_not_rewritten(tmp_path: Path) -> None:
    file = write(tmp_path / "dead", letter(1), letter(2))
    source = StoredLines(file, nowhere)
    found = heads(source)
    write(file, letter(3), letter(4))
    with pytest.raises(LettersUnusable, match="line 1 was changed meanwhile; start again"):
        anyio.run(source.delete, found)
    with pytest.raises(BadLetter, match="changed meanwhile"):
        anyio.run(source.read, found[0])
    assert left(file) == [3, 4]
    assert [each.name for each in tmp_path.iterdir()] == ["dead"]


def test_two_replays_cannot_share_receipts(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    with (
        Receipts.opened(path),
        pytest.raises(NotChanged, match="another replay is using"),
        Receipts.opened(path),
    ):
        pass
    with Receipts.opened(path):
        pass
    with pytest.raises(NotChanged, match="cannot be written"), Receipts.opened(tmp_path / "no" / "such"):
        pass


def test_receipts_are_continued_after_a_cut_off_line(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    first, second = (parse_letter(letter(number).line(), "") for number in (1, 2))
    with Receipts.opened(path) as receipts:
        receipts.write([first], Outcome.DONE, "", 1)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    with Receipts.opened(path) as receipts:
        assert receipts.is_done(first)
        receipts.write([second], Outcome.DONE, "", 1)
    assert set(read_receipts(path)) == {first.name, second.name}


def test_receipts_that_cannot_be_written_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Receipts.opened(tmp_path / "receipts") as receipts:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DeadLetterNotStored, match="No space left"):
            receipts.write([parse_letter(LETTER.line(), "")], Outcome.DONE, "", 1)
        assert not receipts.latest


class Killed(Exception):
    """Raised where the command is killed."""


class Memory:
    """A source whose letters are seen by their numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.stored = [parse_letter(_numbered(number).line(), "") for number in numbers]
        self.deleted: list[str] = []

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        for each in self.stored:
            yield each

    async def read(self, head: StoredLetter) -> DeadLetter:
        return head.letter

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        self.deleted += [each.name for each in heads]

    async def hold(self) -> None:
        await anyio.sleep_forever()


def _numbered(number: int) -> DeadLetter:
    record = replace(letter(number).record, data=b64encode(str(number).encode()).decode())
    return replace(letter(number), record=record)


class CutReceipts(Receipts):
    """Killed in its `at`th write, after so many bytes of it."""

    at = -1
    kept = 0

    def write(self, letters: object, outcome: Outcome, reason: str, at_ms: int) -> None:
        found = list(letters)  # type: ignore[call-overload]
        if found:
            self.at -= 1
        if self.at or not found:
            return super().write(found, outcome, reason, at_ms)
        assert self.path is not None
        before = self.path.read_bytes()
        super().write(found, outcome, reason, at_ms)
        written = self.path.read_bytes()[len(before) :]
        self.path.write_bytes(before + written[: round(len(written) * self.kept / 4)])
        raise Killed


PROGRAM = """
import base64, json, sys
def say(**message): print(json.dumps(message), flush=True)
for line in sys.stdin:
    said = json.loads(line)
    for number, record in enumerate(said.get("records", ())):
        data = base64.b64decode(record["data"]).decode()
        open(sys.argv[1], "a").write(data + "\\n")
        if data == "4":
            say(action="reject", sequenceNumber=record["sequenceNumber"], subSequenceNumber=7, reason="four")
            sys.stdin.readline()
        if number == 1:
            say(action="checkpoint", sequenceNumber=record["sequenceNumber"], subSequenceNumber=7)
            sys.stdin.readline()
    say(action="status", responseFor=said["action"])
"""


async def _replayed(source: Memory, receipts: Receipts, command: tuple[str, ...]) -> None:
    options = ReplayOptions(ChildSettings(command), False, 3, 2, 1, delete_done=True, delete_singly=False)
    todo = [each for each in source.stored if not receipts.is_done(each)]
    copies = {each.name: [each] for each in source.stored}
    async with ProcessChildren(command, MemoryLog(), SystemClock(), ChildOptions()) as children:
        await LetterReplay(source, copies, receipts, options, children, SystemClock(), MemoryLog()).run(
            in_order(todo)
        )


@pytest.mark.parametrize("kept", [0, 2, 4], ids=["before", "within", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_killed_at_any_write_it_goes_on_with_what_is_not_done(tmp_path: Path, at: int, kept: int) -> None:
    """Four writes: a checkpoint of two, the reject, a checkpoint of two, the end."""
    program, seen, path = tmp_path / "program.py", tmp_path / "seen", tmp_path / "receipts"
    program.write_text(PROGRAM)
    command = (sys.executable, "-S", str(program), str(seen))
    source = Memory([1, 2, 3, 4, 5, 6])
    with CutReceipts.opened(path) as cut:
        cut.at, cut.kept = at, kept
        with pytest.raises(BaseException) as caught:
            anyio.run(partial(_replayed, source, cut, command))
        assert (
            caught.group_contains(Killed)
            if isinstance(caught.value, BaseExceptionGroup)
            else caught.type is Killed
        )
    done_before = {name for name, each in read_receipts(path).items() if each.outcome is Outcome.DONE}
    already = len(seen.read_text().split())
    with Receipts.opened(path) as receipts:
        anyio.run(partial(_replayed, source, receipts, command))
    again = seen.read_text().split()[already:]
    assert not {name.rpartition("/")[2].removesuffix("-7") for name in done_before} & set(again)
    ends = {name.rpartition("/")[2]: each.outcome.value for name, each in read_receipts(path).items()}
    assert ends == {f"{n}-7": "rejected" if n == 4 else "done" for n in range(1, 7)}
    assert b64decode(source.stored[3].letter.record.data) == b"4"


@pytest.mark.parametrize(
    ("point", "again"),
    [("before-receipt-write", ["1", "2", "3", "4", "5", "6"]), ("after-receipt-write", ["3", "4", "5", "6"])],
)
def test_killed_around_a_receipt_no_letter_is_left_out(tmp_path: Path, point: str, again: list[str]) -> None:
    program, seen, path = tmp_path / "program.py", tmp_path / "seen", tmp_path / "receipts"
    program.write_text(PROGRAM)
    command = (sys.executable, "-S", str(program), str(seen))
    source = Memory([1, 2, 3, 4, 5, 6])
    with Receipts.opened(path) as receipts, killed_at(point):
        anyio.run(partial(_replayed, source, receipts, command))
    already = len(seen.read_text().split())
    with Receipts.opened(path) as receipts:
        anyio.run(partial(_replayed, source, receipts, command))
    assert seen.read_text().split()[already:] == again
