"""Notes in the spool that tell the source which shards are leased here, and from where on they were given.

The engine writes them, the source reads them in its own process. A note answers one question: may a planned range whose
records are not (all) in the spool still come? Owns nothing but these small files.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcl_spark.positions import START, Position, from_text, to_text
from kcl_spark.private import make_folder, write_text

_NAME: Final = "lease.json"


@dataclass(frozen=True, slots=True)
class Grant:
    """What is known of the lease of a shard.

    Args:
        held: whether a relay of this host serves it now. Of a shard that is not held, no new batch takes anything.
        after: the stored checkpoint when it was last given to this host: what lies at or before it was committed, here
            or elsewhere.
    """

    held: bool
    after: Position = START


NOT_HELD: Final = Grant(held=False)
"""Where nothing is known."""


def write_grant(spool: Path, shard_id: str, grant: Grant) -> None:
    """Put the note into the shard's folder, at once and whole."""
    folder = spool / shard_id
    make_folder(folder)
    temporary = folder / f".{_NAME}"
    write_text(temporary, json.dumps({"held": grant.held, "after": to_text(grant.after)}))
    os.replace(temporary, folder / _NAME)  # noqa: PTH105 - atomic replacement is the point


def read_grant(spool: Path, shard_id: str) -> Grant:
    """The note of a shard; not held where there is none."""
    try:
        told = json.loads((spool / shard_id / _NAME).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return Grant(held=False)
    return Grant(bool(told["held"]), from_text(told["after"]))
