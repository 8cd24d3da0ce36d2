"""From a properties file to `Settings`, with everything that has to be said about the file.

`load` reads the file, `interpret` is pure. Every problem of a file is reported at once; nothing is guessed where the
Java daemon would silently take another value than the one written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcl_daemon.config import properties
from kcl_daemon.config.checks import across
from kcl_daemon.config.keys import EXECUTABLE_NAME, KEYS, REGION_NAME, STREAM_ARN, STREAM_NAME, WORKER_ID
from kcl_daemon.config.kinds import StreamArn
from kcl_daemon.config.notices import Notice, Problem
from kcl_daemon.config.reading import Reading
from kcl_daemon.config.settings import (
    BalanceSettings,
    ChildSettings,
    Endpoints,
    LeaseSettings,
    RetrievalSettings,
    Settings,
)
from kcl_daemon.config.table_settings import TablesSettings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.redact import encodable, on_one_line
from kcl_daemon.ports import Randomness

FILE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that can be started from.

    Args:
        settings: what it says.
        warnings: what to log about it, in the order of the file.
        file: its name as it was given, printable.
        lines: where each key that is acted on stands.
    """

    settings: Settings
    warnings: tuple[Notice, ...]
    file: str
    lines: Mapping[str, int]

    def about_executable(self, reason: str) -> ConfigurationError:
        """The error for an `executableName` that cannot be run, with file and line; the reason names key and value."""
        line = self.lines[EXECUTABLE_NAME.name]
        return ConfigurationError(Problem(on_one_line(reason), line=line).rendered(self.file))


def load(path: Path, *, randomness: Randomness, hostname: str) -> Loaded:
    """Read a file and make sense of it.

    Args:
        path: the file; a pipe is fine.
        randomness: for the default worker id.
        hostname: for the default worker id.

    Raises:
        ConfigurationError: one line for each thing that is wrong, each with file, key and value.
    """
    file = encodable(str(path))
    try:
        with path.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = Problem(f"the properties file cannot be read: {reason}")
        raise ConfigurationError(problem.rendered(file)) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(
            Problem(f"larger than {FILE_BYTES_MAX} bytes, no properties file").rendered(file)
        )
    token = randomness.token().replace("-", "")[:12]
    return interpret(data, file=file, default_worker_id=f"{encodable(hostname) or 'worker'}-{token}")


def interpret(data: bytes, *, file: str, default_worker_id: str) -> Loaded:
    """What the bytes of a file mean; the same bytes always mean the same.

    Raises:
        ConfigurationError: see `load`.
    """
    reading = Reading(on_one_line(file))
    try:
        for entry in properties.parse(data):
            reading.take(entry)
    except properties.MalformedProperties as error:
        reading.problems.append(Problem(error.reason, line=error.line))
        raise reading.failure() from None
    values = reading.values()
    problems, notices = across(values, {name: entry.line for name, entry in reading.entries.items()})
    reading.problems += problems
    reading.notices += notices
    reading.look_for_missing(values)
    if reading.problems:
        raise reading.failure()
    return Loaded(
        settings=_settings({WORKER_ID.name: default_worker_id, **values}),
        warnings=reading.in_order(),
        file=reading.file,
        lines={name: entry.line for name, entry in reading.entries.items()},
    )


def _settings(values: Mapping[str, object]) -> Settings:
    fields = {key.target: values[key.name] for key in KEYS if key.name in values}
    arn = fields.get(STREAM_ARN.target)
    if isinstance(arn, StreamArn):
        fields |= {STREAM_ARN.target: arn.arn, STREAM_NAME.target: arn.stream_name}
        fields.setdefault(REGION_NAME.target, arn.region_name)
    # Any: the table says of which type each field is; a test compares it with the fields.
    sections: dict[str, dict[str, Any]] = {
        "": {},
        "child": {},
        "endpoints": {},
        "leases": {},
        "balance": {},
        "retrieval": {},
        "tables": {},
        "tables.leases": {},
        "tables.worker_metrics": {},
        "tables.coordinator": {},
    }
    for target, value in fields.items():
        section, _, attribute = target.rpartition(".")
        sections[section][attribute] = value
    return Settings(
        **sections[""],
        child=ChildSettings(**sections["child"]),
        endpoints=Endpoints(**sections["endpoints"]),
        leases=LeaseSettings(**sections["leases"]),
        balance=BalanceSettings(**sections["balance"]),
        retrieval=RetrievalSettings(**sections["retrieval"]),
        tables=_tables(sections),
    )


def _tables(sections: Mapping[str, Mapping[str, Any]]) -> TablesSettings:
    defaults = TablesSettings()
    return TablesSettings(
        **sections["tables"],
        leases=replace(defaults.leases, **sections["tables.leases"]),
        worker_metrics=replace(defaults.worker_metrics, **sections["tables.worker_metrics"]),
        coordinator=replace(defaults.coordinator, **sections["tables.coordinator"]),
    )
