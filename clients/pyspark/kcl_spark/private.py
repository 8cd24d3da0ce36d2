"""Files and folders that nobody but this user may read: what is in them came out of the stream, or tells of it.

Owns the modes. A folder that was there before keeps its own: whoever made it may have wanted others to read it.
"""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = 0o700
_FILE = 0o600


def make_folder(path: Path) -> None:
    """Make a folder, where it is missing, that is closed to others; what Spark and Arrow write below is then, too."""
    path.mkdir(mode=_FOLDER, parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file that is closed to others from its first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(text)


def replace_text(path: Path, text: str) -> None:
    """The same for a file that is read after a crash: it has the new text or the one before, never a part.

    Raises:
        OSError: it could not be written; the file is as it was.
    """
    young = path.with_name(f".{path.name}.young")
    young.unlink(missing_ok=True)  # of a crash; its mode would stay
    descriptor = os.open(young, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        young.replace(path)
    except OSError:
        young.unlink(missing_ok=True)
        raise
