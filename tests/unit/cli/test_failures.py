"""The end of a daemon that failed, in words."""

from __future__ import annotations

import pytest

from kcl_daemon.cli.common import advice_for, report_failure
from kcl_daemon.errors import (
    AccessDenied,
    ConfigurationError,
    KclError,
    LeaseLost,
    StreamNotFound,
    Unavailable,
    leaves,
)
from kcl_daemon.ports import Log


class Errors:
    """A log that remembers errors."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def bind(self, **fields: object) -> Log:
        return self

    def error(self, event: str, /, **fields: object) -> None:
        self.events.append((event, fields))

    debug = info = warning = error


def reported(error: BaseException) -> tuple[str, dict[str, object]]:
    log = Errors()
    report_failure(error, log)
    (event,) = log.events
    return event


def test_an_expected_error_is_one_line_with_advice() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [StreamNotFound("no stream", operation="ListShards")])])
    event, fields = reported(group)
    assert event == "daemon_failed"
    assert fields["error"] == "StreamNotFound: ListShards: no stream"
    assert "streamName" in str(fields["advice"])
    assert set(fields) == {"error", "advice"}


def test_further_expected_errors_are_named_once_each() -> None:
    errors = [AccessDenied("a"), Unavailable("b"), Unavailable("b")]
    assert reported(ExceptionGroup("g", errors))[1]["others"] == ["Unavailable: b"]


def test_an_unexpected_error_brings_its_traceback() -> None:
    group = ExceptionGroup("g", [StreamNotFound("s"), ZeroDivisionError("z")])
    event, fields = reported(group)
    assert event == "daemon_failed_unexpectedly"
    assert fields["error"] == "ZeroDivisionError: z"
    assert fields["exc_info"] is group


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigurationError("no region"), 2), (Unavailable("down"), 1), (ZeroDivisionError(), 1)],
)
def test_the_exit_code_tells_whether_trying_again_can_help(error: Exception, code: int) -> None:
    assert report_failure(ExceptionGroup("g", [error]), Errors()) == code


@pytest.mark.parametrize("error", [LeaseLost(), KclError("x")])
def test_every_expected_error_has_some_advice(error: KclError) -> None:
    assert advice_for(error)


def test_groups_are_taken_apart_in_order() -> None:
    one, two = ValueError("1"), ValueError("2")
    assert list(leaves(ExceptionGroup("g", [ExceptionGroup("h", [one]), two]))) == [one, two]
