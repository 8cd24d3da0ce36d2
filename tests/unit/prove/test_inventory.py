"""What is to be removed is on the disk before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcl_prove.inventory import Inventory, Item, Run, RunIsAtWork, earlier_runs, state_folder
from kcl_prove.parts import ProveError

RUN = Run("kcl-prove-0123abcd", "eu-west-1", "123456789012", {"kinesis": "http://127.0.0.1:1"})
STREAM, TABLE = Item("stream", "kcl-prove-0123abcd-a"), Item("table", "kcl-prove-0123abcd-b")


def left_by_a_crash(folder: Path, *items: Item) -> Path:
    inventory = Inventory.begin(folder, RUN)
    for item in items:
        inventory.add(item)
    inventory.close()
    return inventory.path


def test_after_a_crash_the_file_names_run_and_items(tmp_path: Path) -> None:
    path = left_by_a_crash(tmp_path, STREAM, TABLE)
    again = Inventory.open(path)
    assert (again.run, again.items) == (RUN, (STREAM, TABLE))
    assert earlier_runs(tmp_path) == (path,)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_removed_item_leaves_the_inventory_and_the_last_one_deletes_its_file(tmp_path: Path) -> None:
    path = left_by_a_crash(tmp_path, STREAM, TABLE)
    again = Inventory.open(path)
    again.removed(STREAM)
    again.close()
    last = Inventory.open(path)
    assert last.items == (TABLE,)
    last.removed(TABLE)
    last.add(STREAM)
    last.removed(STREAM)
    last.close()
    assert earlier_runs(tmp_path) == ()


def test_a_run_at_work_is_left_alone(tmp_path: Path) -> None:
    inventory = Inventory.begin(tmp_path, RUN)
    with pytest.raises(RunIsAtWork, match="Ctrl-C"):
        Inventory.open(inventory.path)
    inventory.close()


@pytest.mark.parametrize("torn", ['{"made":"table","na', ""])
def test_a_line_cut_off_by_a_crash_counts_for_nothing(tmp_path: Path, torn: str) -> None:
    path = left_by_a_crash(tmp_path, STREAM)
    with path.open("a") as file:
        file.write(torn)
    assert Inventory.open(path).items == (STREAM,)


def test_a_run_killed_before_its_first_line_made_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kcl-prove-0123abcd.jsonl"
    path.write_text('{"run":{"run_id"')
    inventory = Inventory.open(path)
    assert inventory.items == ()
    inventory.close()
    assert not path.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[]\n",
        "7\n",
        "nonsense\n",
        '{"run":{}}\n',
        '{"run":{"run_id":"x","region":"y"}}\n{"made":"bucket","name":"n"}\n',
    ],
)
def test_a_file_of_something_else_is_kept_and_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ProveError, match="--search"):
        Inventory.open(path)
    assert path.read_text() == text


def test_nothing_is_made_where_nothing_can_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProveError, match="nothing was made"):
        Inventory.begin(tmp_path / "file", RUN)


def test_the_state_folder_is_that_of_xdg() -> None:
    assert state_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/kcl-daemon/prove")
    for given in ({"HOME": "/h"}, {"HOME": "/h", "XDG_STATE_HOME": "not/absolute"}):
        assert state_folder(given) == Path("/h/.local/state/kcl-daemon/prove")
