"""Reading the small files in which Linux tells its figures. Knows no format.

Such a file is made up in memory while it is read, in microseconds. A worker thread would cost more than the read, so
the event loop reads them itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from kcl_daemon.errors import CpuUnreadable

T = TypeVar("T")

# /proc/stat has a line for each CPU and a number for each interrupt; all that counts is at the start.
_READ_BYTES: Final = 4096


def read(path: Path, parse: Callable[[str], T]) -> T:
    """What `parse` makes of the first 4 KiB; CpuUnreadable, with the path, for a file that is missing or malformed."""
    try:
        return parse(_start(path).decode("ascii"))
    except OSError as error:
        raise CpuUnreadable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CpuUnreadable(f"{path}: {error}") from error


def _start(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)
