"""Standing in for `java`: the command lines with which the client libraries start the Java daemon start this one.

Pure. Owns what such a command line looks like; what is passed over is
told in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAIN_CLASSES: Final = (
    "software.amazon.kinesis.multilang.MultiLangDaemon",
    "com.amazonaws.services.kinesis.multilang.MultiLangDaemon",  # KCL 1.x
)
PASSED_OVER: Final = "--passed-over"
"""The hidden option of `run` for words that mean something to Java only."""


def as_daemon(words: Sequence[str]) -> list[str]:
    """The words of a command line as this program's: what stands before Java's main class is passed over.

    `java -version`, which one launcher tries first, is the version of this program. Words without a main class are
    left as they are.
    """
    if list(words) == ["-version"]:
        return ["--version"]
    place = next((number for number, word in enumerate(words) if word in MAIN_CLASSES), None)
    if place is None:
        return list(words)
    passed_over = [f"{PASSED_OVER}={word}" for word in words[: place + 1]]
    return ["run", *passed_over, *words[place + 1 :]]
