"""What a run makes, written down before it is made: a JSON line each.

While a run lives it holds a lock on its file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, get_args

import orjson

from kcl_prove.parts import Kind, ProveError

SUFFIX: Final = ".jsonl"
_KINDS: Final = frozenset(get_args(Kind))


class RunIsAtWork(ProveError): ...


@dataclass(frozen=True, slots=True)
class Item:
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Run:
    """`account`: empty on local endpoints."""

    run_id: str
    region: str
    account: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict[str, str])


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    given = environment.get("XDG_STATE_HOME", "")
    states = Path(given) if given.startswith("/") else Path(environment.get("HOME") or "~", ".local", "state")
    return states.expanduser() / "kcl-daemon" / "prove"


class Inventory:
    """Every change is on the disk when the method returns."""

    def __init__(self, path: Path, file: int, run: Run, items: tuple[Item, ...] = ()) -> None:
        self.path = path
        self.run = run
        self._file = file
        self._items = dict.fromkeys(items)

    @classmethod
    def begin(cls, folder: Path, run: Run) -> Inventory:
        """ProveError if it cannot be written: then nothing may be made."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / f"{run.run_id}{SUFFIX}"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            inventory = cls(path, file, run)
            inventory.set_run(run)
            _sync_folder(folder)
        except OSError as error:
            raise ProveError(
                f"cannot write down what is made: {error}; nothing was made. Set XDG_STATE_HOME to a folder that can "
                "be written to"
            ) from error
        return inventory

    @classmethod
    def open(cls, path: Path) -> Inventory:
        """RunIsAtWork; ProveError if the file is none of ours."""
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(path, file, *_parsed(path))
        except BlockingIOError:
            os.close(file)
            raise RunIsAtWork(
                f"{path.stem} is at work; stop it with Ctrl-C and it removes its things"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            os.close(file)
            raise ProveError(
                f"{path} cannot be read ({error}); `--clean --search` looks in the account"
            ) from error

    @property
    def items(self) -> tuple[Item, ...]:
        return tuple(self._items)

    def set_run(self, run: Run) -> None:
        self._write({"run": asdict(run)})
        self.run = run

    def add(self, item: Item) -> None:
        if item not in self._items:
            self._write({"made": item.kind, "name": item.name})
            self._items[item] = None

    def removed(self, item: Item) -> None:
        if item in self._items:
            self._write({"removed": item.kind, "name": item.name})
            del self._items[item]

    def close(self) -> None:
        """Removes the file if it names nothing any more."""
        if not self._items:
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _write(self, line: Mapping[str, object]) -> None:
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        os.fsync(self._file)


def _parsed(path: Path) -> tuple[Run, tuple[Item, ...]]:
    """A line that is not whole is left out: what it names was not made."""
    run, items = Run(path.stem, ""), dict[Item, None]()
    for line in map(orjson.loads, path.read_bytes().split(b"\n")[:-1]):
        if "run" in line:
            run = Run(**line["run"])
            continue
        item = Item(line.get("made") or line["removed"], line["name"])
        if item.kind not in _KINDS:
            raise ValueError(f"{item.kind} is no kind that this version makes")
        if "made" in line:
            items[item] = None
        else:
            items.pop(item, None)
    return run, tuple(items)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def earlier_runs(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob(f"*{SUFFIX}")))
