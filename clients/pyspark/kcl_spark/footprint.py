"""Settings that keep an engine with Spark in itself small.

What the JVM and the C library take by default is for servers that have the machine to themselves. Pure. Measured by turns,
with two queries and a heap of 1 GiB, all processes at their highest: 1,515 MB without these settings and with Python taken
out of an archive (`home`), 1,100 MB with all of it. The same work took no longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ARENAS: Final = ("MALLOC_ARENA_MAX", "2")
"""For the environment: arenas of the C library, of which each thread may get one otherwise."""
_SMALL_MIB: Final = 2_048
_GIVE_BACK: Final = "-Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"
_SERIAL: Final = "-XX:+UseSerialGC"
_UNITS: Final = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
_DEFAULT: Final = "spark.driver.defaultJavaOptions"
_OWN: Final = ("spark.driver.extraJavaOptions", _DEFAULT)
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")


def small_jvm(driver_memory: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark for a small heap; none for a large one, whose collector should work in parallel.

    Args:
        driver_memory: as Spark writes sizes.
        conf: of the user: a collector that is chosen there stays.
    """
    if _DEFAULT in conf or _mib(driver_memory) > _SMALL_MIB:
        return {}
    chosen = any(_COLLECTOR.search(conf.get(name, "")) for name in _OWN)
    return {_DEFAULT: _GIVE_BACK if chosen else f"{_SERIAL} {_GIVE_BACK}"}


def _mib(size: str) -> float:
    match = re.fullmatch(r"([0-9]+)([kmgt])b?", size.strip().lower())
    return 0 if match is None else int(match[1]) * _UNITS[match[2]]
