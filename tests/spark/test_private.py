"""What holds records or state can be read by its user alone, whatever the umask says."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from kcl_landing.control import make_folder, replace_text, write_text
from kcl_landing.positions import START
from kcl_spark.spool import Spool
from kcl_spark.state import open_state
from kcl_spark.stores import FolderStore
from tests.spark.parts import ME, SHARD, files, fill


@pytest.fixture(autouse=True)
def a_careless_umask() -> Generator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> Iterator[str]:
    """What others could read or change below a folder; what lies in a closed one they cannot reach."""
    for path in [folder, *folder.rglob("*")]:
        way = [each for each in (path, *path.parents) if each.is_relative_to(folder)]
        if all(stat.S_IMODE(each.stat().st_mode) & 0o077 for each in way):
            yield str(path)


def test_a_spool_is_closed(tmp_path: Path) -> None:
    spool = Spool(FolderStore(tmp_path / "spool"), max_bytes=1_000_000)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    assert len(files(spool)) == 1
    assert (tmp_path / "spool" / SHARD).is_dir()
    assert list(open_to_others(tmp_path / "spool")) == []


def test_a_spool_in_a_folder_that_was_there_is_closed_below_it(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    spool = Spool(FolderStore(folder), max_bytes=1_000_000)
    spool.grant(SHARD, START, ME)
    fill(spool, 0, 9)
    assert len(files(spool)) == 1
    assert list(open_to_others(folder)) == [str(folder)]


def test_state_is_closed(tmp_path: Path) -> None:
    with open_state(tmp_path / "state", "app", wait_s=0) as state:
        state.remember_jvm(os.getpid())
        assert list(open_to_others(tmp_path / "state")) == []
        for name in ("lock", "state.json", "engine.json"):
            assert stat.S_IMODE((state.path / name).stat().st_mode) == 0o600


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    make_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "note"
    write_text(path, "a longer text")
    write_text(path, "short")
    assert path.read_text("utf-8") == "short"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note"
    replace_text(path, "the first")
    (tmp_path / ".note.young").write_text("half of what was written in a cra")
    replace_text(path, "the second")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_text(path, "the third")
    assert path.read_text("utf-8") == "the second"
    assert [each.name for each in tmp_path.iterdir()] == ["note"]
