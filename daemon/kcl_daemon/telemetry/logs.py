"""The daemon's log: one line for each event on stderr, for people (console) or machines (JSON).

A log call never raises and never shows a credential. Levels may differ by package or module:
`INFO,kcl_daemon.retrieval=DEBUG`; the most specific name wins.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TextIO, cast

import orjson

import kcl_daemon
from kcl_daemon.ports import Clock, Log, LogLevel, level_of
from kcl_daemon.text import MASK, encodable, is_secret_name, masked, on_one_line, short_shard

# structlog would load these, 9 MB, for coloured tracebacks and greenlets, which no log of ours has.
_UNUSED: Final = [name for name in ("greenlet", "rich") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_UNUSED, cast("ModuleType", None)))
import structlog  # noqa: E402

for _name in _UNUSED:
    del sys.modules[_name]

Threshold = LogLevel | Literal["off"]

_ROOT: Final = "kcl_daemon"
# CountedLog only wraps the log; it is not the caller.
_COUNTS: Final = "kcl_daemon.telemetry.recorder"
_NUMBERS: Final[dict[Threshold, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL,  # no event has this level
}


@dataclass(frozen=True, slots=True)
class LogLevels:
    root: Threshold = "info"
    components: Mapping[str, Threshold] = field(default_factory=dict[str, Threshold])

    def number_of(self, module: str) -> int:
        name = module
        while name:
            if name in self.components:
                return _NUMBERS[self.components[name]]
            name = name.rpartition(".")[0]
        return _NUMBERS[self.root]


def threshold_of(word: str) -> Threshold | None:
    return "off" if word.strip().lower() == "off" else level_of(word)


def parse_levels(text: str) -> LogLevels:
    """From `LEVEL` and `COMPONENT=LEVEL`, separated by commas; ValueError names the wrong part and the choices."""
    root: Threshold = "info"
    components: dict[str, Threshold] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, word = part.rpartition("=")
        threshold = threshold_of(word)
        if threshold is None:
            raise ValueError(f"{part!r}: no such level; levels are debug, info, warning, error, off")
        if not equals:
            root = threshold
        else:
            components[component(name)] = threshold
    return LogLevels(root, components)


def component(name: str) -> str:
    """`kcl_daemon.` may be left out. ValueError names the existing components."""
    words = name.strip().split(".")
    inner = words[1:] if words[0] == _ROOT else words
    if not exists(".".join(inner)):
        raise ValueError(f"{name.strip()!r}: no such component; there are {', '.join(_packages())}")
    return ".".join((_ROOT, *inner))


def exists(inner: str) -> bool:
    words = inner.split(".") if inner else []
    if not all(word.isidentifier() for word in words):
        return False
    place = Path(kcl_daemon.__path__[0], *words)
    return place.is_dir() or place.with_suffix(".py").is_file()


def _packages() -> list[str]:
    return sorted(path.parent.name for path in Path(kcl_daemon.__path__[0]).glob("*/__init__.py"))


def logger_class(levels: LogLevels) -> type[Any]:
    """Drops unwanted events early; with component levels half a microsecond goes into looking up the calling module."""
    thresholds = (levels.root, *levels.components.values())
    lowest = min(_NUMBERS[each] for each in thresholds)
    if not levels.components:
        return structlog.make_filtering_bound_logger(lowest)
    return type("ComponentLogger", (_ComponentLogger,), {"lowest": lowest, "levels": levels, "known": {}})


class _ComponentLogger(structlog.BoundLoggerBase):
    lowest: int
    levels: LogLevels
    known: dict[str, int]

    def debug(self, event: str, /, **fields: object) -> object:
        return self._say(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, /, **fields: object) -> object:
        return self._say(logging.INFO, "info", event, fields)

    def warning(self, event: str, /, **fields: object) -> object:
        return self._say(logging.WARNING, "warning", event, fields)

    def error(self, event: str, /, **fields: object) -> object:
        return self._say(logging.ERROR, "error", event, fields)

    def _say(self, number: int, method: str, event: str, fields: dict[str, object]) -> object:
        if number < self.lowest:
            return None
        caller = sys._getframe(2)  # noqa: SLF001 - what logging does for its callers
        module = str(caller.f_globals.get("__name__", ""))
        if module == _COUNTS and caller.f_back is not None:
            module = str(caller.f_back.f_globals.get("__name__", ""))
        threshold = self.known.get(module)
        if threshold is None:
            threshold = self.known[module] = self.levels.number_of(module)
        return self._proxy_to_logger(method, event, **fields) if number >= threshold else None


LogForm = Literal["console", "json"]
_DEPTH_MAX: Final = 6
_START: Final = "daemon_starting"
_CHILD_LINE: Final = "child_stderr"
_INT64: Final = range(-(2**63), 2**64)  # what orjson can write
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_REPEATS_AFTER_S: Final = 60.0
_LOOKS_EVERY_S: Final = 10.0
_KNOWN_MOST: Final = 256
_COMPARED_CHARACTERS: Final = 200

_EventDict = MutableMapping[str, Any]  # Any: structlog's own type


def build_log(
    *,
    level: LogLevel | LogLevels,
    form: LogForm,
    stream: TextIO,
    clock: Clock,
    journal_stream: str = "",
    repeats: Repeats | None = None,
) -> Log:
    """`console` is shorter and coloured on a terminal. `journal_stream`: JOURNAL_STREAM of the environment."""
    levels = level if isinstance(level, LogLevels) else LogLevels(level)
    lines = _Lines(stream)
    shown: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        _timestamp(clock),
        structlog.processors.format_exc_info,
        _fit_to_show,
        _console(colours=stream.isatty()) if form == "console" else _to_json,
        *([_for_journal] if _is_journal(stream, journal_stream) else []),
    ]

    def say(event: _EventDict) -> None:
        line: Any = event  # Any: structlog's own type
        for processor in shown:
            line = processor(lines, "warning", line)
        lines.warning(line)

    repeats = repeats or Repeats(clock)
    repeats.say = say
    log: Log = structlog.wrap_logger(
        lines,
        processors=[repeats.pass_on, *shown],
        wrapper_class=logger_class(levels),
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return log.bind()


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        # A broken stderr must not stop the work; ValueError: closed file, unencodable text.
        with suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = msg


def _is_journal(stream: TextIO, name: str) -> bool:
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file behind it, or closed
        return False
    return name == f"{status.st_dev}:{status.st_ino}"


def _for_journal(_logger: object, method: str, text: Any) -> str:  # Any: structlog's own type
    """For journald (systemd: SyslogLevelPrefix)."""
    return "\n".join(f"<{_PRIORITIES[method]}>{line}" for line in text.split("\n"))


class Repeats:
    """A warning of the worker with the same name and texts is said by the minute, with the number left out."""

    say: Callable[[_EventDict], None]

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[frozenset[tuple[str, str]], tuple[float, int, _EventDict]] = {}

    def pass_on(self, _logger: object, method: str, event: _EventDict) -> _EventDict:
        if method != "warning" or "shard_id" in event:
            return event
        texts = frozenset((k, v[:_COMPARED_CHARACTERS]) for k, v in event.items() if isinstance(v, str))
        now_s = self._clock.monotonic()
        said_s, left_out, _ = self._known.pop(texts, (now_s - _REPEATS_AFTER_S, 0, {}))
        if now_s - said_s < _REPEATS_AFTER_S:
            self._known[texts] = said_s, left_out + 1, event
            raise structlog.DropEvent
        self._known[texts] = now_s, 0, {}
        if len(self._known) > _KNOWN_MOST:
            self._tell(next(iter(self._known)))
        return {**event, "repeated": left_out} if left_out else event

    def _tell(self, texts: frozenset[tuple[str, str]]) -> None:
        _, left_out, last = self._known.pop(texts)
        if left_out:
            self.say({**last, "repeated": left_out - 1} if left_out > 1 else last)

    def tell(self, after_s: float = 0.0) -> None:
        now_s = self._clock.monotonic()
        for texts, (said_s, left_out, _) in list(self._known.items()):
            if left_out and now_s - said_s >= after_s:
                self._tell(texts)
                self._known[texts] = now_s, 0, {}

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_LOOKS_EVERY_S)
            self.tell(_REPEATS_AFTER_S)


def _timestamp(clock: Clock) -> structlog.typing.Processor:
    def stamp(_logger: object, _method: str, event: _EventDict) -> _EventDict:
        moment = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        event["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    return stamp


def _fit_to_show(_logger: object, _method: str, event: _EventDict) -> _EventDict:
    """Masks credentials."""
    return {str(name): MASK if _hides(name, value) else _plain(value, 0) for name, value in event.items()}


def _hides(name: object, value: object) -> bool:
    return value is not None and not isinstance(value, bool) and is_secret_name(str(name))


def _plain(value: object, depth: int) -> object:
    """JSON types of bounded depth, with masked text."""
    match value:
        case str():
            return encodable(masked(str(value)))
        case None | bool():
            return value
        case int() | float():
            return _number(value)
        case Mapping() if depth < _DEPTH_MAX:
            return {
                encodable(str(name)): MASK if _hides(name, each) else _plain(each, depth + 1)
                for name, each in value.items()
            }
        case list() | tuple() if depth < _DEPTH_MAX:
            return [_plain(each, depth + 1) for each in value]
        case _:
            return _text_of(value)


def _number(value: float) -> object:
    if isinstance(value, int):
        return int(value) if int(value) in _INT64 else str(int(value))
    return float(value)


def _text_of(value: object) -> str:
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - any object may be logged, and its __str__ may raise anything
        text = f"<{type(value).__name__} without text: {type(error).__name__}>"
    return encodable(masked(text))


def _to_json(_logger: object, _method: str, event: _EventDict) -> str:
    first = ("timestamp", "level", "event")
    ordered = {name: event.pop(name) for name in first if name in event}
    return orjson.dumps({**ordered, **event}).decode()


def _in_lines(event: _EventDict) -> _EventDict:
    """Escapes control characters, which could fake lines or control a terminal; tracebacks keep their lines."""
    for name, value in event.items():
        if isinstance(value, str):
            lines = value.split("\n") if name == "exception" else [value]
            event[name] = "\n".join(on_one_line(line) for line in lines)
        elif isinstance(value, list | dict):
            event[name] = orjson.dumps(value).decode()
    return event


def _console(*, colours: bool) -> structlog.typing.Processor:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colours, sort_keys=False, pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
    )

    def render(logger: Any, method: str, event: _EventDict) -> str:  # Any: structlog's own type
        shown = _in_lines(event)
        if not colours:
            return renderer(logger, method, shown)
        return _child_line(shown) or renderer(logger, method, _for_terminal(shown))

    return render


def _child_line(event: _EventDict) -> str | None:
    if event.get("event") != _CHILD_LINE or not isinstance(event.get("line"), str):
        return None
    shard_id = event.get("shard_id")
    who = "child" if shard_id is None else f"shard {short_shard(str(shard_id))}"
    stream = f" of {event['stream']}" if event.get("stream") else ""
    return f"{_time_of_day(event)} {who}{stream} | {event['line']}"


def _for_terminal(event: _EventDict) -> _EventDict:
    """structlog.DropEvent if another event of the same start says the same."""
    taken = event.get("event") == "lease_taken" and "reason" not in event
    if taken or (event.get("event") == "lease_assigned" and event.get("to") == event.get("worker_id")):
        raise structlog.DropEvent  # `child_started` follows
    once = set() if event.get("event") == _START else {"worker_id"}
    shown = {name: value for name, value in event.items() if value is not None and name not in once}
    return {**shown, "timestamp": _time_of_day(event)}


def _time_of_day(event: _EventDict) -> str:
    return str(event.get("timestamp", ""))[11:19]
