"""From a properties file to `Settings`, with everything that has to be said about the file.

`load` reads the file, `interpret` is pure. Every problem of a file is reported at once; nothing is guessed where the
Java daemon would silently take another value than the one written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcl_daemon.config import properties
from kcl_daemon.config.access_settings import CredentialsSettings, ServiceSettings
from kcl_daemon.config.admin_settings import AdminSettings
from kcl_daemon.config.checks import across
from kcl_daemon.config.checks_failures import of_failures
from kcl_daemon.config.checks_names import of_names
from kcl_daemon.config.checks_spark import of_spark
from kcl_daemon.config.checks_streams import of_streams, regions_of
from kcl_daemon.config.compatibility import honoured
from kcl_daemon.config.environment import overrides
from kcl_daemon.config.failure_settings import FailureSettings
from kcl_daemon.config.fan_out_settings import FanOutSettings
from kcl_daemon.config.keys import EXECUTABLE_NAME, KEYS, REGION_NAME, STREAM_ARN, STREAM_NAME, WORKER_ID
from kcl_daemon.config.keys_fan_out import resolve_mode
from kcl_daemon.config.kinds import StreamArn
from kcl_daemon.config.metrics_settings import MetricsSettings
from kcl_daemon.config.notices import Notice, Problem
from kcl_daemon.config.reading import NAMES, Reading
from kcl_daemon.config.schema_settings import SchemaSettings
from kcl_daemon.config.settings import (
    BalanceSettings,
    ChildSettings,
    Endpoints,
    LeaseSettings,
    RetrievalSettings,
    Settings,
)
from kcl_daemon.config.shard_settings import ShardSettings
from kcl_daemon.config.spark_settings import SparkSettings
from kcl_daemon.config.stream_settings import StreamsSettings
from kcl_daemon.config.table_settings import TablesSettings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.redact import encodable, on_one_line
from kcl_daemon.ports import Randomness

FILE_BYTES_MAX: Final = 1024 * 1024
RELAY: Final = (sys.executable, "-m", "kcl_spark.relay")
"""The children of a Spark pipeline; where their engine is, is added when it is known."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that can be started from.

    Args:
        settings: what it says.
        warnings: what to log about it, in the order of the file.
        file: its name as it was given, printable.
        entries: what was written of each key that is acted on, by the key's name.
        texts: what the value of each was read from, variables replaced.
    """

    settings: Settings
    warnings: tuple[Notice, ...]
    file: str
    entries: Mapping[str, properties.Entry]
    texts: Mapping[str, str]

    def about_executable(self, reason: str) -> ConfigurationError:
        """The error for an `executableName` that cannot be run, with file and line; the reason names key and value."""
        return self._about(EXECUTABLE_NAME.name, reason)

    def about_user(self, reason: str) -> ConfigurationError:
        """The same for a `childUser` that children cannot run as."""
        return self._about("childUser", reason)

    def _about(self, name: str, reason: str) -> ConfigurationError:
        entry = self.entries.get(name)
        line, variable = (None, None) if entry is None else (entry.line, entry.variable)
        problem = Problem(on_one_line(reason), line=line, variable=variable)
        return ConfigurationError(problem.rendered(self.file))


def load(
    path: Path, *, randomness: Randomness, hostname: str, environment: Mapping[str, str] | None = None
) -> Loaded:
    """Read a file and make sense of it.

    Args:
        path: the file; a pipe is fine.
        randomness: for the default worker id.
        hostname: for the default worker id.
        environment: variables of this process, whose `KCL_...` override the file.

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
            Problem(f"larger than {FILE_BYTES_MAX} bytes; not a properties file").rendered(file)
        )
    token = randomness.token().replace("-", "")[:12]
    default_worker_id = f"{encodable(hostname) or 'worker'}-{token}"
    return interpret(data, file=file, default_worker_id=default_worker_id, environment=environment)


def interpret(
    data: bytes, *, file: str, default_worker_id: str, environment: Mapping[str, str] | None = None
) -> Loaded:
    """What the bytes of a file mean; the same bytes in the same environment always mean the same.

    Raises:
        ConfigurationError: see `load`.
    """
    reading = Reading(on_one_line(file), environment or {})
    try:
        for entry in properties.parse(data):
            reading.take(entry)
    except properties.MalformedProperties as error:
        reading.problems.append(Problem(error.reason, line=error.line))
        raise reading.failure() from None
    for entry in overrides(environment or {}, NAMES):
        reading.take(entry)
    values = reading.values()
    resolve_mode(values, (*reading.entries.values(), *reading.others.values()))
    lines = {name: entry.line for name, entry in reading.entries.items()}
    problems, notices = across(values, lines, environment or {})
    reading.problems += [
        *problems,
        *of_names(values, reading.entries),
        *of_streams(values, reading.entries),
        *of_failures(values, reading.entries),
        *of_spark(values, reading.entries),
    ]
    reading.notices += [*notices, *honoured(values, lines)]
    reading.look_for_missing(values)
    if reading.problems:
        raise reading.failure()
    return Loaded(
        settings=_settings({WORKER_ID.name: default_worker_id, **values}, reading.spark_conf),
        warnings=reading.in_order(),
        file=reading.file,
        entries=reading.entries,
        texts=reading.texts,
    )


def _settings(values: Mapping[str, object], spark_conf: Mapping[str, str]) -> Settings:
    fields = {key.target: values[key.name] for key in KEYS if key.name in values}
    arn = fields.get(STREAM_ARN.target)
    if isinstance(arn, StreamArn):
        fields |= {STREAM_ARN.target: arn.arn, STREAM_NAME.target: arn.stream_name}
        fields.setdefault(REGION_NAME.target, arn.region_name)
    for region_name in regions_of(values):
        fields.setdefault(REGION_NAME.target, region_name)
    fields.setdefault(STREAM_NAME.target, "")
    # Any: the table says of which type each field is; a test compares it with the fields.
    sections: dict[str, dict[str, Any]] = {
        "": {},
        "child": {},
        "endpoints": {},
        "endpoints.credentials": {},
        "endpoints.of_kinesis": {},
        "endpoints.of_dynamodb": {},
        "endpoints.of_cloudwatch": {},
        "endpoints.of_glue": {},
        "streams": {},
        "leases": {},
        "balance": {},
        "shards": {},
        "retrieval": {},
        "fan_out": {},
        "tables": {},
        "tables.leases": {},
        "tables.worker_metrics": {},
        "tables.coordinator": {},
        "metrics": {},
        "schemas": {},
        "failures": {},
        "admin": {},
        "spark": {"conf": tuple(spark_conf.items())},
    }
    for target, value in fields.items():
        section, _, attribute = target.rpartition(".")
        sections[section][attribute] = value
    if "pipeline" in sections["spark"]:
        sections["child"]["command"] = RELAY
    return Settings(
        **sections[""],
        child=ChildSettings(**sections["child"]),
        streams=StreamsSettings(**sections["streams"]),
        endpoints=_endpoints(sections),
        leases=LeaseSettings(**sections["leases"]),
        balance=BalanceSettings(**sections["balance"]),
        shards=ShardSettings(**sections["shards"]),
        retrieval=RetrievalSettings(**sections["retrieval"]),
        fan_out=FanOutSettings(**sections["fan_out"]),
        tables=_tables(sections),
        spark=SparkSettings(**sections["spark"]),
        metrics=MetricsSettings(**sections["metrics"]),
        schemas=SchemaSettings(**sections["schemas"]),
        failures=FailureSettings(**sections["failures"]),
        admin=AdminSettings(**sections["admin"]),
    )


def _endpoints(sections: Mapping[str, Mapping[str, Any]]) -> Endpoints:
    return Endpoints(
        **sections["endpoints"],
        credentials=CredentialsSettings(**sections["endpoints.credentials"]),
        of_kinesis=ServiceSettings(**sections["endpoints.of_kinesis"]),
        of_dynamodb=ServiceSettings(**sections["endpoints.of_dynamodb"]),
        of_cloudwatch=ServiceSettings(**sections["endpoints.of_cloudwatch"]),
        of_glue=ServiceSettings(**sections["endpoints.of_glue"]),
    )


def _tables(sections: Mapping[str, Mapping[str, Any]]) -> TablesSettings:
    defaults = TablesSettings()
    return TablesSettings(
        **sections["tables"],
        leases=replace(defaults.leases, **sections["tables.leases"]),
        worker_metrics=replace(defaults.worker_metrics, **sections["tables.worker_metrics"]),
        coordinator=replace(defaults.coordinator, **sections["tables.coordinator"]),
    )
