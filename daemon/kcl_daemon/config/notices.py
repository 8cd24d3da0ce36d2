"""What reading a file has to say beside the settings: notices, which are logged, and problems, which stop the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kcl_daemon.observe.redact import on_one_line, shown


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about one line that a person should know; the daemon starts all the same.

    Args:
        event: name of the log event.
        key: the property as it is written, printable.
        line: where it stands.
        facts: further fields of the event.
        level: how loud.
        variable: of the environment, where the property comes from there.
    """

    event: str
    key: str
    line: int
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    level: Literal["info", "warning"] = "warning"
    variable: str | None = None

    def fields(self, file: str) -> dict[str, object]:
        """All fields of the log event."""
        if self.variable is not None:
            return {"variable": self.variable, "key": self.key, **self.facts}
        return {"file": file, "line": self.line, "key": self.key, **self.facts}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must be put right first.

    Args:
        reason: what is wrong and what is allowed.
        key: the property, None where it is the file as a whole.
        value: its value as written, None where it is missing.
        line: where it stands, None where it is missing.
        variable: of the environment, where the property comes from there.
    """

    reason: str
    key: str | None = None
    value: str | None = None
    line: int | None = None
    variable: str | None = None

    def rendered(self, file: str) -> str:
        """One line: `app.properties:12: failoverTimeMillis = abc: not a whole number; allowed: ...`."""
        where = on_one_line(file) if self.line is None else f"{on_one_line(file)}:{self.line}"
        if self.variable is not None:
            where = f"environment, {self.variable}"
        if self.key is None:
            return f"{where}: {self.reason}"
        if self.value is None:
            return f"{where}: {self.key} {self.reason}"
        return f"{where}: {shown(self.key)} = {shown(self.value, name=self.key)}: {self.reason}"
