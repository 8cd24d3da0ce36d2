"""A Spark home from which Python is not taken out of an archive.

Spark puts `python/lib/pyspark.zip` of its home in front of every worker's path. From an archive Python compiles each module
again at each start of a process: that triples the time until a worker answers, for which Spark waits ten seconds and no
longer. The same modules are installed where our own Python has them compiled. So the home that Spark is given is a folder
of links to the real one, without that archive. For workers of this machine only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyspark

_LEFT_OUT: Final = frozenset({"python", "__pycache__"})


def lean_home(folder: Path) -> Path:
    """Make that folder, or bring it up to date; its path."""
    real = Path(pyspark.__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir():
        if not entry.is_dir() or entry.name in _LEFT_OUT:
            continue
        link = folder / entry.name
        if link.is_symlink() and link.readlink() != entry:
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(entry)
    return folder
