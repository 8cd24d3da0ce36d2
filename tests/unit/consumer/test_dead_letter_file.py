"""Dead letters in a file: whole lines, on disk, for their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import anyio
import orjson
import pytest

from kcl_daemon.destinations.file import DeadLetterFile
from kcl_daemon.errors import ConfigurationError, DeadLetterNotStored
from tests.unit.consumer.letters import LETTER, letter

pytestmark = pytest.mark.anyio


def numbers(path: Path) -> list[str]:
    return [orjson.loads(line)["sequenceNumber"] for line in path.read_bytes().splitlines()]


async def test_letters_are_lines_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    for number in (1, 2):
        await DeadLetterFile(path).store(letter(number))
    assert path.read_bytes() == letter(1).line() + b"\n" + letter(2).line() + b"\n"


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    await DeadLetterFile(path).prepare()
    assert path.read_bytes() == b""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_letter_is_on_disk_when_it_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dead.jsonl"
    synced: list[int] = []

    def fsync(file: int) -> None:
        synced.append(os.fstat(file).st_size)

    file = DeadLetterFile(path)
    await file.prepare()
    monkeypatch.setattr(os, "fsync", fsync)
    await file.store(LETTER)
    assert synced == [len(LETTER.line()) + 1]


async def test_a_half_line_that_a_crash_has_left_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_bytes(letter(1).line() + b"\n" + letter(2).line()[:20])
    await DeadLetterFile(path).store(letter(3))
    first, half, third = path.read_bytes().splitlines()
    assert (first, half, third) == (letter(1).line(), letter(2).line()[:20], letter(3).line())


async def test_a_letter_written_in_part_is_removed_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dead.jsonl"
    file = DeadLetterFile(path)
    await file.store(letter(1))
    before = path.read_bytes()

    write = os.write

    def disk_is_full(descriptor: int, data: memoryview) -> None:
        write(descriptor, data[:30])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", disk_is_full)
    with pytest.raises(DeadLetterNotStored, match=r"dead\.jsonl: No space left on device"):
        await file.store(letter(2))
    assert path.read_bytes() == before


async def test_several_writers_do_not_get_into_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    async with anyio.create_task_group() as writers:
        for number in range(40):
            writers.start_soon(DeadLetterFile(path).store, letter(number))
    assert sorted(map(int, numbers(path))) == list(range(40))


async def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    file = DeadLetterFile(path)
    await file.store(letter(1))
    path.rename(tmp_path / "yesterday.jsonl")
    await file.store(letter(2))
    assert numbers(path) == ["2"]


async def test_a_place_that_cannot_be_written_is_known_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"deadLetterDestination: .*missing/dead\.jsonl cannot be written"
    ):
        await DeadLetterFile(tmp_path / "missing" / "dead.jsonl").prepare()
    with pytest.raises(DeadLetterNotStored, match="No such file"):
        await DeadLetterFile(tmp_path / "missing" / "dead.jsonl").store(LETTER)


async def test_many_letters_cost_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "dead.jsonl", list[int]()
    file = DeadLetterFile(path)
    await file.prepare()
    monkeypatch.setattr(os, "fsync", synced.append)
    await file.store_all([letter(number) for number in range(50)])
    assert numbers(path) == [letter(number).record.sequence_number for number in range(50)]
    assert len(synced) == 1


async def test_of_many_letters_that_do_not_fit_none_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dead.jsonl"
    file = DeadLetterFile(path)
    await file.store(letter(1))

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DeadLetterNotStored, match="No space left"):
        await file.store_all([letter(2), letter(3)])
    assert numbers(path) == [letter(1).record.sequence_number]
