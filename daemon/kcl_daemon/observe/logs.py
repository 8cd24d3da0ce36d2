"""The daemon's log: one line for each event, on stderr, for people (console) or for machines (JSON).

Makes the one logger that is handed down as the Log port; nothing here is global. Both forms go to stderr, so that
stdout stays free for what commands print. A log call never raises and never shows a credential, whatever its fields hold.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import orjson
import structlog

from kcl_daemon.config.log_settings import LogLevel
from kcl_daemon.observe.levels import Levels, logger_class
from kcl_daemon.observe.redact import MASK, encodable, is_secret_name, masked, on_one_line
from kcl_daemon.observe.words import short_shard
from kcl_daemon.ports import Clock, Log

LogForm = Literal["console", "json"]
_DEPTH_MAX: Final = 6
_START: Final = "daemon_starting"
_CHILD_LINE: Final = "child_stderr"
_INT64: Final = range(-(2**63), 2**64)  # what orjson writes as a number

_EventDict = MutableMapping[str, Any]  # Any: structlog's own type of an event


def build_log(
    *,
    level: LogLevel | Levels,
    form: LogForm,
    stream: TextIO,
    clock: Clock,
) -> Log:
    """The logger of a process.

    Args:
        level: the lowest that is written, of all or by component; calls below it cost next to nothing.
        form: `console`: text, on a terminal shorter and coloured; `json`: one object on each line.
        stream: where lines go; a broken one is put up with.
        clock: for the time of each event.
    """
    levels = level if isinstance(level, Levels) else Levels(level)
    render = _console(colours=stream.isatty()) if form == "console" else _to_json
    log: Log = structlog.wrap_logger(
        _Lines(stream),
        processors=[
            structlog.processors.add_log_level,
            _Timestamp(clock),
            structlog.processors.format_exc_info,
            _fit_to_show,
            render,
        ],
        wrapper_class=logger_class(levels),
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return log.bind()


class _Lines:
    """Writes whole lines and flushes them; there is nobody to tell when stderr is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        # A closed or broken stderr must not stop the work; ValueError: closed file, unencodable text.
        with suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = msg


class _Timestamp:
    """Adds `timestamp`: ISO 8601 in UTC with milliseconds, from the Clock port."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, _logger: object, _method: str, event: _EventDict) -> _EventDict:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        event["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event


def _fit_to_show(_logger: object, _method: str, event: _EventDict) -> _EventDict:
    """Mask credentials and turn every value into one that can be written."""
    return {str(name): MASK if _hides(name, value) else _plain(value, 0) for name, value in event.items()}


def _hides(name: object, value: object) -> bool:
    return value is not None and not isinstance(value, bool) and is_secret_name(str(name))


def _plain(value: object, depth: int) -> object:
    """The value in terms of JSON, bounded in depth, text masked and encodable."""
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


class _OneLine:
    """Escapes control characters, which could pretend to be other lines or steer a terminal; tracebacks keep lines."""

    def __call__(self, _logger: object, _method: str, event: _EventDict) -> _EventDict:
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
    one_line = _OneLine()

    def render(logger: Any, method: str, event: _EventDict) -> str:  # Any: structlog's own type of a logger
        shown = one_line(logger, method, event)
        if not colours:
            return renderer(logger, method, shown)
        return _said_by_child(shown) or renderer(logger, method, _for_terminal(shown))

    return render


def _said_by_child(event: _EventDict) -> str | None:
    """The line of a child as `12:03:51 shard 3 | order-3 a plum`; None: the event is another one."""
    if event.get("event") != _CHILD_LINE or not isinstance(event.get("line"), str):
        return None
    shard_id = event.get("shard_id")
    who = "child" if shard_id is None else f"shard {short_shard(str(shard_id))}"
    stream = f" of {event['stream']}" if event.get("stream") else ""
    return f"{_time_of_day(event)} {who}{stream} | {event['line']}"


def _for_terminal(event: _EventDict) -> _EventDict:
    """What a person at a terminal needs of an event: the time of day, and neither the worker's own id nor empty fields.

    Raises:
        structlog.DropEvent: another event of the same start says the same.
    """
    taken = event.get("event") == "lease_taken" and "reason" not in event
    if taken or (event.get("event") == "lease_assigned" and event.get("to") == event.get("worker_id")):
        raise structlog.DropEvent  # `child_started` follows
    once = set() if event.get("event") == _START else {"worker_id"}
    shown = {name: value for name, value in event.items() if value is not None and name not in once}
    return {**shown, "timestamp": _time_of_day(event)}


def _time_of_day(event: _EventDict) -> str:
    """Hours, minutes and seconds, in UTC as everywhere in the log."""
    return str(event.get("timestamp", ""))[11:19]
