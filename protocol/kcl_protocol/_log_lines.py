"""The one message that is not KCL's: a line for the daemon's log, which a child may send where the daemon allows it.

It is no part of a conversation: it may come at any time, is not answered, and changes nothing. A daemon that does not
allow it, the Java daemon among them, takes it for stray output.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Final

LEVEL_DEFAULT: Final = "info"


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a child wants to have in the log.

    Args:
        level: a word; what it means is the daemon's business.
        message: the text.
    """

    action: ClassVar[str] = "log"
    level: str
    message: str


def decode_log_line(line: bytes) -> LogLine | None:
    """The message of a line, None where it is none. Never raises; the whole line must be one JSON object in UTF-8."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("action") != LogLine.action:
        return None
    message, level = fields.get("message"), fields.get("level", LEVEL_DEFAULT)
    if not isinstance(message, str) or not isinstance(level, str):
        return None
    return LogLine(level, message)


def encode_log_line(line: LogLine) -> bytes:
    """The message as one line of ASCII with one LF at its end."""
    fields = {"action": line.action, "level": line.level, "message": line.message}
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
