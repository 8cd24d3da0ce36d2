from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from kcl_landing.control import Refused
from kcl_landing.keeping.read import reader_of
from kcl_landing.log import READERS, ReaderNote, reader_path
from kcl_landing.store import LogStore

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def register(store: LogStore, name: str, *, at_ms: int) -> ReaderNote:
    """A new one needs everything. Refused: a wrong name."""
    note = ReaderNote(_checked(name), {}, at_ms)
    if store.create(reader_path(name), msgspec.json.encode(note)):
        return note
    return reader_of(store, name) or note


def report(store: LogStore, name: str, done: Mapping[str, int], *, at_ms: int) -> None:
    """Replaces all that it has said."""
    store.replace(reader_path(_checked(name)), msgspec.json.encode(ReaderNote(name, dict(done), at_ms)))


def forget(store: LogStore, name: str) -> bool:
    path = reader_path(_checked(name))
    is_known = any(each.path == path for each in store.listing(READERS))
    store.remove([path])
    return is_known


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise Refused(
            f"{name!r} cannot be the name of a reader: letters, digits, '.', '_' and '-'; at most 128, a letter or digit first"
        )
    return name
