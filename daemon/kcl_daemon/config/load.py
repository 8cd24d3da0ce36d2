"""From a properties file to `Settings`, notices and problems; and which values are in force.

Reports all problems at once. Refuses what Java would silently read as another value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

import javaproperties

from kcl_daemon.config import properties
from kcl_daemon.config.balance import BalanceSettings, LeaseSettings, ShardSettings
from kcl_daemon.config.checks import (
    check_failures,
    check_names,
    check_spark,
    check_streams,
    check_together,
    regions_of,
)
from kcl_daemon.config.children import ChildSettings, FailureSettings
from kcl_daemon.config.keys import (
    EXECUTABLE_NAME,
    EXPAND_ENVIRONMENT,
    INITIAL_POSITION,
    INITIAL_POSITION_EXTENDED,
    KEYS,
    REGION_NAME,
    STREAM_ARN,
    STREAM_NAME,
    WORKER_ID,
)
from kcl_daemon.config.kinds import Key, StreamArn
from kcl_daemon.config.metrics_and_page import AdminSettings, MetricsSettings
from kcl_daemon.config.properties import Notice, Problem, PropertyEntry, overrides
from kcl_daemon.config.reading import NAMES, Reading, java_differences
from kcl_daemon.config.retrieval import (
    RETRIEVAL_MODE,
    FanOutSettings,
    RetrievalSettings,
    SchemaSettings,
    resolve_mode,
)
from kcl_daemon.config.services import CredentialsSettings, Endpoints, ServiceSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.config.spark import CONF_PREFIX, SparkSettings
from kcl_daemon.config.streams import STREAM_ARNS, StreamsSettings
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import Randomness
from kcl_daemon.shards.lineage import InitialPosition
from kcl_daemon.text import encodable, on_one_line, shown

FILE_BYTES_MAX: Final = 1024 * 1024
RELAY: Final = (sys.executable, "-m", "kcl_spark.relay")
"""For a Spark pipeline; its socket is added later."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file says.

    Args:
        file: printable name.
        entries: by canonical name.
        texts: by canonical name, variables replaced.
    """

    settings: Settings
    warnings: tuple[Notice, ...]
    file: str
    entries: Mapping[str, properties.PropertyEntry]
    texts: Mapping[str, str]

    def about_executable(self, reason: str) -> ConfigurationError:
        """`reason` names key and value."""
        return self._about(EXECUTABLE_NAME.name, reason)

    def about_user(self, reason: str) -> ConfigurationError:
        return self._about("childUser", reason)

    def _about(self, name: str, reason: str) -> ConfigurationError:
        entry = self.entries.get(name)
        line, variable = (None, None) if entry is None else (entry.line, entry.variable)
        problem = Problem(on_one_line(reason), line=line, variable=variable)
        return ConfigurationError(problem.rendered(self.file))


def load(
    path: Path, *, randomness: Randomness, hostname: str, environment: Mapping[str, str] | None = None
) -> Loaded:
    """`KCL_...` variables override the file. Raises ConfigurationError with one line per problem."""
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
    """Like `load`, from bytes; the result depends on nothing else."""
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
    problems, notices = check_together(values, lines, environment or {})
    reading.problems += [
        *problems,
        *check_names(values, reading.entries),
        *check_streams(values, reading.entries),
        *check_failures(values, reading.entries),
        *check_spark(values, reading.entries),
    ]
    reading.notices += [*notices, *java_differences(values, lines)]
    reading.check_required(values)
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
    # Any: a test compares the table with the types of the fields.
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


_NOTHING: Final = Settings(application_name="", stream_name="", child=ChildSettings(command=()), worker_id="")
"""All defaults; required fields are empty."""


@dataclass(frozen=True, slots=True)
class EffectiveProperty:
    """`value` is masked; `origin` is `FILE:LINE`, a variable, `default` or another property."""

    key: str
    value: str
    origin: str
    is_default: bool


def effective(loaded: Loaded) -> Iterator[EffectiveProperty]:
    """Every key, in the order of the reference."""
    for key in KEYS:
        derived = _derived_from(key, loaded)
        entry = loaded.entries.get(key.name)
        if derived is None and (entry is None or key.name not in loaded.texts):
            yield EffectiveProperty(
                key.name, _default_in_force(key, loaded.settings), "default", is_default=True
            )
            continue
        text = _in_force(key, loaded)
        if derived is not None or entry is None:
            origin = derived or ""
        else:
            origin = entry.variable or f"{loaded.file}:{entry.line}"
        yield EffectiveProperty(key.name, shown(text, name=key.name), origin, is_default=False)


def as_properties(loaded: Loaded) -> str:
    """A file that means the same wherever it is read; contains overrides, variables and secrets."""
    # DEFAULT may depend on properties that are not written out.
    texts = {**loaded.texts, RETRIEVAL_MODE.name: value_text(loaded.settings.retrieval.mode)}
    values = {key.name: texts[key.name] for key in KEYS if key.name in texts}
    if loaded.settings.stream_arn is None and values.pop(STREAM_ARN.name, None) is not None:
        # Only the name counts, wherever the file is read.
        values[STREAM_NAME.name] = loaded.settings.stream_name
        if loaded.settings.endpoints.region_name is not None:
            values[REGION_NAME.name] = loaded.settings.endpoints.region_name
        values = {key.name: values[key.name] for key in KEYS if key.name in values}
    values.pop(EXPAND_ENVIRONMENT.name, None)  # variables are already replaced
    values |= {f"{CONF_PREFIX}{name}": value for name, value in loaded.settings.spark.conf}
    return "".join(f"{javaproperties.join_key_value(name, value, ' = ')}\n" for name, value in values.items())


def _in_force(key: Key, loaded: Loaded) -> str:
    """As a file could have it; as written if it has several parts."""
    value = field_of(loaded.settings, key.target)
    if key.kind.written is not None:
        return key.kind.written(value)
    if isinstance(value, int | float | str | Enum | InitialPosition):
        return value_text(value)
    return loaded.texts.get(key.name, "none")


def _default_in_force(key: Key, settings: Settings) -> str:
    if key is WORKER_ID:
        return shown(settings.worker_id)
    return default_of(key).replace("`", "")


def _derived_from(key: Key, loaded: Loaded) -> str | None:
    """What else set the field, or overruled the file."""
    if STREAM_ARN.name in loaded.texts and (derived := _derived_from_arn(key, loaded)) is not None:
        return derived
    if loaded.settings.streams.arns and key is REGION_NAME and key.name not in loaded.entries:
        return STREAM_ARNS.name
    if key is RETRIEVAL_MODE and _is_default(loaded.entries.get(key.name)):
        return "default"
    if key is INITIAL_POSITION and INITIAL_POSITION_EXTENDED.name in loaded.texts:
        return INITIAL_POSITION_EXTENDED.name
    if key is EXECUTABLE_NAME and loaded.settings.spark.pipeline is not None:
        return "sparkPipeline"
    return None


def _derived_from_arn(key: Key, loaded: Loaded) -> str | None:
    names_region = loaded.settings.endpoints.region_name is not None
    if key is STREAM_NAME or (key is REGION_NAME and names_region and key.name not in loaded.entries):
        return STREAM_ARN.name
    if key is STREAM_ARN and loaded.settings.stream_arn is None:
        return "only its name is used"
    return None


def _is_default(entry: PropertyEntry | None) -> bool:
    return entry is None or entry.value.strip().upper() == "DEFAULT"


def default_of(key: Key) -> str:
    if key.default is not None:
        return key.default
    if key.required:
        return "required"
    return value_text(field_of(_NOTHING, key.target))


def field_of(settings: Settings, target: str) -> object:
    """Raises LookupError."""
    value: object = settings
    for name in target.split("."):
        if not hasattr(value, name):
            raise LookupError(f"{target} is no field of the settings")
        value = getattr(value, name)
    return value


def value_text(value: object) -> str:
    """A value as a file could have it."""
    match value:
        case bool():
            return str(value).lower()
        case InitialPosition():
            return value.at.value if value.timestamp_s is None else f"{value.timestamp_s:.0f}"
        case Enum():
            return str(value.value)
        case _:
            return str(value)
