"""As `java.util.Properties`. Imports little: health checks use it every few seconds."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import javaproperties

from kcl_daemon.config.kinds import InvalidValue
from kcl_daemon.text import on_one_line, shown

LINE_END: Final = re.compile(r"\r\n|\r|\n")
_HEAD_BYTES: Final = 64
PREFIX: Final = "KCL_"
# Used by other programs.
_NOT_OURS: Final = frozenset(
    {"KCL_DEMO_LEDGER", "KCL_MVN_REPO_SEARCH_URL", "KCL_POSIX_ONLY", "KCL_TEST_MARK"}
)
# A command that a child runs must not take its stream for that of the file.
_IN_A_CHILD: Final = "KCL_SHARD_ID"
_TOLD_TO_CHILDREN: Final = frozenset(
    {
        _IN_A_CHILD,
        "KCL_STREAM_NAME",
        "KCL_STREAM_ARN",
        "KCL_LANE",
        "KCL_FRAMES",
        "KCL_REJECTS",
        "KCL_LOG_MESSAGES",
    }
    | {"KCL_FINISH_BATCHES", "KCL_PRELOAD_FD"}
)
_SERVICE: Final = r"KCL(?:_[A-Z0-9_]+)?"
_PORT_OF_IT: Final = r"PORT_[0-9]+_(?:TCP|UDP|SCTP)"
_LINK_BY_NAME: Final = re.compile(
    # The lookahead prevents quadratic time.
    rf"(?=[A-Z0-9_]*+\Z){_SERVICE}_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|{_PORT_OF_IT}_(?:PROTO|PORT|ADDR))"
)
_LINK_WITH_ADDRESS: Final = re.compile(rf"{_SERVICE}_(?:PORT|{_PORT_OF_IT})")
_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://\S+:[0-9]+")
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class PropertyEntry:
    """`line` is 0 if it is not from a file."""

    key: str
    value: str
    line: int
    variable: str | None = None


class MalformedProperties(ValueError):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def parse(data: bytes) -> Iterator[PropertyEntry]:
    """In file order, with repeated keys (Java: the last one counts).

    Skips a UTF-8 byte order mark. MalformedProperties for a bad Unicode escape or UTF-16.
    """
    line = 1
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in data[:_HEAD_BYTES]:
        raise MalformedProperties(line, "the file is in UTF-16; save it as UTF-8 or ISO-8859-1")
    elements = javaproperties.parse(data.removeprefix(codecs.BOM_UTF8))
    while True:
        try:
            element = next(elements)
        except StopIteration:
            return
        except javaproperties.InvalidUEscapeError as error:
            raise MalformedProperties(
                line, f"{error.escape} is not a character: \\u needs four hexadecimal digits"
            ) from None
        if isinstance(element, javaproperties.KeyValue):
            yield PropertyEntry(element.key, element.value, line + _blank_lines_before(element.source))
        line += len(LINE_END.findall(element.source))


def _blank_lines_before(source: str) -> int:
    before = source[: len(source) - len(source.lstrip(" \t\f\r\n\\"))]
    return len(LINE_END.findall(before)) if "\\" in before else 0


def normal(name: str) -> str:
    """Environments cannot keep case and word separators."""
    return re.sub(r"[._-]", "", name).lower()


def is_service_link(variable: str, value: str) -> bool:
    """Unless `enableServiceLinks` is false, a pod gets variables such as `KCL_ADMIN_PORT=tcp://10.0.0.1:80`."""
    if _LINK_BY_NAME.fullmatch(variable):
        return True
    return bool(_LINK_WITH_ADDRESS.fullmatch(variable) and _ADDRESS.fullmatch(value))


def given(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Sorted, without empty ones; in a child of a daemon without what that one has said."""
    others = _NOT_OURS | _TOLD_TO_CHILDREN if _IN_A_CHILD in environment else _NOT_OURS
    for variable in sorted(environment):
        value = environment[variable]
        is_ours = variable.upper().startswith(PREFIX) and variable not in others
        if is_ours and value and not is_service_link(variable, value):
            yield variable, value


def given_for(key: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    wanted = normal(PREFIX + key)
    found = [each for each in given(environment) if normal(each[0]) == wanted]
    return found[-1] if found else None


def variable_for(key: str) -> str:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", key.replace(".", "_"))
    return PREFIX + words.upper()


def overrides(environment: Mapping[str, str], names: Iterable[str]) -> Iterator[PropertyEntry]:
    by_normal = {normal(name): name for name in names}
    for variable, value in given(environment):
        written = variable[len(PREFIX) :]
        yield PropertyEntry(by_normal.get(normal(written), written), value, 0, variable)


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Once. InvalidValue if one is not set."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        # As in a shell: with a default, empty counts as not set.
        found = environment.get(name) or default if default is not None else environment.get(name)
        if found is None:
            raise InvalidValue(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}"
            )
        return found

    end = text.rfind("}") + 1  # no reference ends after it; a search there takes quadratic time
    return _REFERENCE.sub(value, text[:end]) + text[end:]


@dataclass(frozen=True, slots=True)
class Notice:
    event: str
    key: str
    line: int
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    level: Literal["info", "warning"] = "warning"
    variable: str | None = None

    def fields(self, file: str) -> dict[str, object]:
        if self.variable is not None:
            return {"variable": self.variable, "key": self.key, **self.facts}
        return {"file": file, "line": self.line, "key": self.key, **self.facts}


@dataclass(frozen=True, slots=True)
class Problem:
    reason: str
    key: str | None = None
    value: str | None = None
    line: int | None = None
    variable: str | None = None

    @staticmethod
    def at(entry: PropertyEntry, reason: str) -> Problem:
        return Problem(reason, entry.key, entry.value, entry.line, entry.variable)

    def rendered(self, file: str) -> str:
        where = on_one_line(file) if self.line is None else f"{on_one_line(file)}:{self.line}"
        if self.variable is not None:
            where = f"environment, {self.variable}"
        if self.key is None:
            return f"{where}: {self.reason}"
        if self.value is None:
            return f"{where}: {self.key} {self.reason}"
        return f"{where}: {shown(self.key)} = {shown(self.value, name=self.key)}: {self.reason}"
