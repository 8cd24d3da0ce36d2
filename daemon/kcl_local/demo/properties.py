"""The properties file that the demo gives to the daemon: an ordinary one, shown on the screen.

Owns its text and the launcher for a Python whose path has blanks. Pure but for writing those two files.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kcl_local.demo.stream import REGION

PROCESSOR: Final = "kcl_local.demo.wordcount"
LAUNCHER: Final = "wordcount.sh"


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """What differs between the properties files of one run.

    Args:
        executable: `executableName`.
        worker_id: name of the worker.
        application: name of the application, and so of its lease table.
        stream: name of the stream.
        kinesis_url: where the local Kinesis is.
        dynamodb_url: where the local DynamoDB is.
        more: further keys, as they are to stand in the file.
    """

    executable: str
    worker_id: str
    application: str
    stream: str
    kinesis_url: str
    dynamodb_url: str
    more: Mapping[str, str] = field(default_factory=dict[str, str])

    def text(self) -> str:
        """The whole file: ASCII, as java.util.Properties reads it."""
        values = {
            "executableName": self.executable,
            "streamName": self.stream,
            "applicationName": self.application,
            "workerId": self.worker_id,
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "regionName": REGION,
            "kinesisEndpoint": self.kinesis_url,
            "dynamoDBEndpoint": self.dynamodb_url,
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            "idleTimeBetweenReadsInMillis": "250",
            "parentShardPollIntervalMillis": "500",
            "shutdownGraceMillis": "15000",
            **self.more,
        }
        return "".join(f"{key} = {escaped(value)}\n" for key, value in values.items())


def escaped(value: str) -> str:
    """A value as it must stand in a properties file: backslashes doubled, all beyond ASCII as UTF-16 escapes."""
    out: list[str] = []
    for character in value:
        if character == "\\":
            out.append("\\\\")
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return "".join(out)


def executable_name(directory: Path, python: str = sys.executable) -> str:
    """The `executableName` of the word-count processor.

    The daemon splits it on spaces, so a Python with a blank in its path is started by a launcher script in
    `directory`, named relative to it: the daemon must run there.
    """
    if python.isascii() and python.isprintable() and " " not in python:
        return f"{python} -m {PROCESSOR}"
    launcher = directory / LAUNCHER
    launcher.write_text(f"#!/bin/sh\nexec {shlex.quote(python)} -m {PROCESSOR}\n", "utf-8", "surrogateescape")
    launcher.chmod(0o700)
    return f"./{LAUNCHER}"
