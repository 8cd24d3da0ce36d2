"""One JSON library inside: orjson, and msgspec where types are decoded."""

from __future__ import annotations

import re
from typing import Final

from tests.house.figures import source_files

_HALVES: Final = "half of a surrogate pair is no fault of a record, and orjson refuses it"
STAYS: Final = {
    "kcl_daemon.admin.site": _HALVES,
    "kcl_daemon.aws.session": "its hook drops documentation while a model is read",
    "kcl_daemon.children.platform": "what children write is theirs",
    "kcl_daemon.children.preload": "a variable of the environment may be no UTF-8",
    "kcl_daemon.leases.expiry": "its bytes are stored",
    "kcl_daemon.records.changes": _HALVES,
    "kcl_daemon.records.dead_letter": _HALVES,
    "kcl_daemon.records.event_pattern": "a number may have any size",
    "kcl_daemon.records.kpl": _HALVES,
    "kcl_daemon.records.letters": _HALVES,
    "kcl_daemon.records.payload": _HALVES,
    "kcl_daemon.records.producing": "a number stays as it is written",
    "kcl_daemon.state_folder": "a number of the evidence may have any size",
    "kcl_daemon.transport.kinesis": _HALVES,
    "kcl_daemon.transport.snapshots": _HALVES,
    "kcl_prove.numbered": "its children load no more than the client does",
}
_JSON: Final = re.compile(r"^\s*(?:import|from) json\b", re.MULTILINE)


def test_json_is_imported_only_where_orjson_cannot_do_it() -> None:
    ours = ("kcl_daemon.", "kcl_local.", "kcl_prove.")
    used = {file.name for file in source_files() if file.name.startswith(ours) and _JSON.search(file.text)}
    assert used - STAYS.keys() == set()
