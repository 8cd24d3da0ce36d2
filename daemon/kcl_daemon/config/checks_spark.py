"""What the properties of the Spark client must agree on: where Spark runs, how records get there, whose engine it is.

Pure. Works on values that are good by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcl_daemon.config.key import Key
from kcl_daemon.config.keys_spark import (
    SPARK_ENGINE,
    SPARK_ENGINE_CERTIFICATE,
    SPARK_ENGINE_LISTEN,
    SPARK_ENGINE_TOKEN_FILE,
    SPARK_MASTER,
    SPARK_REMOTE,
    SPARK_SPOOL_DIR,
    SPARK_STATE_DIR,
    SPARK_TRANSPORT,
    SPARK_TRIGGER,
)
from kcl_daemon.config.notices import Problem
from kcl_daemon.config.properties import Entry

_Complaint = tuple[Key, str]
_AVAILABLE_NOW: Final = "availableNow"


def of_spark(values: Mapping[str, object], entries: Mapping[str, Entry]) -> Iterator[Problem]:
    """What must be put right.

    Args:
        values: by key name, good ones only.
        entries: what was written of each.
    """
    for key, reason in (*_place(values), *_engines(values)):
        entry = entries[key.name]
        yield Problem(reason, entry.key, entry.value, entry.line, entry.variable)


def _place(values: Mapping[str, object]) -> Iterator[_Complaint]:
    """Where Spark runs, and how records get there."""
    transport = values.get(SPARK_TRANSPORT.name)
    elsewhere = next((key for key in (SPARK_REMOTE, SPARK_MASTER) if _is_elsewhere(values, key)), None)
    if SPARK_REMOTE.name in values:
        if SPARK_MASTER.name in values:
            yield (
                SPARK_MASTER,
                f"the server of {SPARK_REMOTE.name} has its own master; remove this line",
            )
        if transport is not None and transport != "shared":
            yield (
                SPARK_TRANSPORT,
                f"{SPARK_REMOTE.name} needs sparkTransport=shared: the server plans the batches",
            )
        if missing := _missing(values, SPARK_SPOOL_DIR, SPARK_STATE_DIR):
            yield SPARK_REMOTE, f"needs {missing}: folders that the server can also reach"
    elif elsewhere is not None and transport == "local":
        yield SPARK_TRANSPORT, "workers of a cluster cannot read this machine's files; use shared or inline"
    elif transport == "shared" and SPARK_SPOOL_DIR.name not in values:
        yield (
            SPARK_TRANSPORT,
            f"needs {SPARK_SPOOL_DIR.name}: a folder or URI that all Spark workers can reach",
        )
    if (
        "://" in str(values.get(SPARK_SPOOL_DIR.name, ""))
        and transport != "shared"
        and elsewhere is not SPARK_REMOTE
    ):
        yield SPARK_SPOOL_DIR, f"a URI needs {SPARK_TRANSPORT.name}=shared"


def _engines(values: Mapping[str, object]) -> Iterator[_Complaint]:
    """One engine for several hosts."""
    if SPARK_ENGINE.name in values:
        if SPARK_ENGINE_LISTEN.name in values:
            yield (
                SPARK_ENGINE,
                f"a host feeds another engine or has its own ({SPARK_ENGINE_LISTEN.name}), not both",
            )
        if missing := _missing(values, SPARK_ENGINE_TOKEN_FILE):
            yield SPARK_ENGINE, f"needs {missing}"
    elif SPARK_ENGINE_LISTEN.name in values and (
        missing := _missing(values, SPARK_ENGINE_TOKEN_FILE, SPARK_ENGINE_CERTIFICATE)
    ):
        yield SPARK_ENGINE_LISTEN, f"needs {missing}"
    if values.get(SPARK_TRIGGER.name) == _AVAILABLE_NOW and (
        SPARK_ENGINE.name in values or SPARK_ENGINE_LISTEN.name in values
    ):
        yield (
            SPARK_TRIGGER,
            "a shared engine never ends; give each host its own engine",
        )


def _is_elsewhere(values: Mapping[str, object], key: Key) -> bool:
    return key.name in values and not str(values[key.name]).startswith("local")


def _missing(values: Mapping[str, object], *keys: Key) -> str:
    return " and ".join(key.name for key in keys if key.name not in values)
