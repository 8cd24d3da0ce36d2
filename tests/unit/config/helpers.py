"""Short ways to a properties text and to what the loader makes of it."""

from __future__ import annotations

import pytest

from kcl_daemon.config.load import Loaded, interpret
from kcl_daemon.errors import ConfigurationError

GOOD = "executableName = consumer.py\nstreamName = orders\napplicationName = billing\n"
WORKER = "host-0123456789ab"


def read(more: str = "", *, base: str = GOOD) -> Loaded:
    """What a good file with more lines in it means; the first of them is line 4."""
    return interpret((base + more).encode("iso-8859-1"), file="app.properties", default_worker_id=WORKER)


def refusals(more: str = "", *, base: str = GOOD) -> list[str]:
    """The lines of the error that a file is refused with."""
    with pytest.raises(ConfigurationError) as caught:
        read(more, base=base)
    return str(caught.value).splitlines()


def events(more: str) -> list[tuple[str, str, int]]:
    """Event, key and line of every notice."""
    return [(notice.event, notice.key, notice.line) for notice in read(more).warnings]
