"""The end of a daemon that failed, in words: what happened and what a person can do about it.

Pure but for the log. An error on purpose (`KclError`) gives one line with advice; anything else is our fault and
shows where it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcl_daemon.errors import (
    AccessDenied,
    ChildError,
    ChildStartFailed,
    ConfigurationError,
    EnvironmentLacks,
    InvalidRequest,
    KclError,
    NoCredentials,
    NoRegion,
    StreamNotFound,
    TableNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.ports import Log

EXIT_FAILURE: Final = 1
EXIT_CONFIGURATION: Final = 2

_ADVICE: Final[tuple[tuple[type[KclError], str], ...]] = (
    (NoRegion, "set regionName or AWS_REGION; a restart alone does not help"),
    (
        NoCredentials,
        "give this host or task a role, or set AWS_PROFILE; a restart alone does not help",
    ),
    (
        AccessDenied,
        "check the credentials of this host and the permissions of its role on the stream and the tables",
    ),
    (StreamNotFound, "check streamName or streamArn, regionName and the account of the credentials"),
    (TableNotFound, "check applicationName, tableName and regionName; was the table deleted while in use?"),
    (Throttled, "the service throttles; start again later or raise its limits"),
    (Unavailable, "check the network, regionName and the endpoint properties"),
    (InvalidRequest, "check names and positions in the properties file; if they are right, report this"),
    (ChildStartFailed, "check executableName"),
    (
        ChildError,
        "read child_stderr and child_failed; childFailurePolicy = restart would replace such a child",
    ),
    (
        ConfigurationError,
        "fix the properties file or the environment; a restart alone does not help",
    ),
)


def report_failure(error: BaseException, log: Log) -> int:
    """One ERROR event for whatever ended the daemon, groups taken apart; the exit code."""
    errors = tuple(leaves(error))
    unexpected = [each for each in errors if not isinstance(each, KclError)]
    if unexpected:
        advice = "a bug in the daemon; report it with this traceback"
        log.error("daemon_failed_unexpectedly", error=describe(unexpected[0]), advice=advice, exc_info=error)
        return EXIT_FAILURE
    first = errors[0]
    others = list(dict.fromkeys(describe(each) for each in errors[1:]))
    more = {"others": others} if others else {}
    log.error("daemon_failed", error=describe(first), advice=advice_for(first), **more)
    return exit_code(first)


def exit_code(error: BaseException) -> int:
    """With what a process ends for it: no region, no credentials, a table of another shape; trying again does not help."""
    helpless = isinstance(error, ConfigurationError | EnvironmentLacks)
    return EXIT_CONFIGURATION if helpless else EXIT_FAILURE


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The single errors of a group of groups, in their order."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def describe(error: BaseException) -> str:
    """Its kind and its words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def advice_for(error: BaseException) -> str:
    """What a person can do."""
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    return "see the error"
