from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import javaproperties

from kcl_daemon.config import properties
from kcl_daemon.config.changes import SOURCE, reads_changes
from kcl_daemon.config.checks import check_together, regions_of
from kcl_daemon.config.kinds import Key, StreamArn
from kcl_daemon.config.properties import Notice, Problem, PropertyEntry, overrides
from kcl_daemon.config.reading import NAMES, Reading
from kcl_daemon.config.retrieval import resolve_mode
from kcl_daemon.config.settings import BY_NAME, DEFAULTS, KEYS, Settings
from kcl_daemon.config.spark import CONF_PREFIX
from kcl_daemon.config.streams import ListedStream, many_of
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import Randomness
from kcl_daemon.shards.lineage import InitialPosition
from kcl_daemon.text import encodable, on_one_line, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FILE_BYTES_MAX: Final = 1024 * 1024
AnySettings = TypeVar("AnySettings", bound="DataclassInstance")
_JSON: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*[{\"\]])")
RELAY: Final = (sys.executable, "-m", "kcl_landing.relay")
"""The socket is added later."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """`entries` and `texts` are by canonical name, variables replaced in `texts`."""

    settings: Settings
    warnings: tuple[Notice, ...]
    file: str
    entries: Mapping[str, PropertyEntry]
    texts: Mapping[str, str]

    def about_executable(self, reason: str) -> ConfigurationError:
        return self._about("executableName", reason)

    def about_user(self, reason: str) -> ConfigurationError:
        return self._about("childUser", reason)

    def about_lanes(self, reason: str) -> ConfigurationError:
        return self._about("shardConcurrency", f"shardConcurrency: {reason}")

    def _about(self, name: str, reason: str) -> ConfigurationError:
        entry = self.entries.get(name)
        line, variable = (None, None) if entry is None else (entry.line, entry.variable)
        problem = Problem(on_one_line(reason), line=line, variable=variable)
        return ConfigurationError(problem.rendered(self.file))


def load(
    path: Path, *, randomness: Randomness, hostname: str, environment: Mapping[str, str] | None = None
) -> Loaded:
    """`KCL_...` variables override the file. ConfigurationError has one line per problem."""
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
    written = (*reading.entries.values(), *reading.others.values())
    resolve_mode(values, written, polls_only=reads_changes(values))
    problems, notices = check_together(values, reading.entries, environment or {})
    reading.problems += problems
    reading.notices += notices
    reading.check_required(values)
    if reading.problems and _JSON.match(data):
        advice = "write one KEY = VALUE on each line, such as streamName = orders"
        reading.problems = [Problem(f"this is JSON, not properties: {advice}")]
    if reading.problems:
        raise reading.failure()
    return Loaded(
        settings=_settings({"workerId": default_worker_id, **values}, reading.spark_conf),
        warnings=reading.in_order(),
        file=reading.file,
        entries=reading.entries,
        texts=reading.texts,
    )


def _settings(values: Mapping[str, object], spark_conf: Mapping[str, str]) -> Settings:
    fields = {key.target: values[key.name] for key in KEYS if key.name in values}
    region = BY_NAME["regionName"].target
    arn = values.get("streamArn")
    if isinstance(arn, StreamArn):
        fields |= {"stream_arn": arn.arn, "stream_name": arn.stream_name}
    for region_name in regions_of(values):
        fields.setdefault(region, region_name)
    if (table := values.get(SOURCE)) is not None:
        if many_of(values) is None:
            fields["stream_name"] = table
        else:
            fields["streams.tables"] = (ListedStream(str(table), table=str(table)),)
    if "sparkPipeline" in values or "landing" in values:
        fields["child.command"] = RELAY
    return _with(DEFAULTS, {**fields, "spark.conf": tuple(spark_conf.items())})


def _with(settings: AnySettings, values: Mapping[str, object]) -> AnySettings:
    own: dict[str, Any] = {}  # a test compares the kinds with the types of the fields
    inner: dict[str, dict[str, object]] = defaultdict(dict)
    for path, value in values.items():
        name, _, rest = path.partition(".")
        if rest:
            inner[name][rest] = value
        else:
            own[name] = value
    own |= {name: _with(getattr(settings, name), below) for name, below in inner.items()}
    return replace(settings, **own)


@dataclass(frozen=True, slots=True)
class EffectiveProperty:
    key: str
    value: str
    origin: str
    is_default: bool


def effective(loaded: Loaded) -> Iterator[EffectiveProperty]:
    derived = _derived(loaded)
    for key in KEYS:
        entry = loaded.entries.get(key.name)
        if key.name in derived:
            origin = derived[key.name]
        elif entry is not None and key.name in loaded.texts:
            origin = entry.variable or f"{loaded.file}:{entry.line}"
        else:
            value = _default_in_force(key, loaded.settings)
            yield EffectiveProperty(key.name, value, "default", is_default=True)
            continue
        text = shown(_in_force(key, loaded), name=key.name)
        yield EffectiveProperty(key.name, text, origin, is_default=False)


def as_properties(loaded: Loaded) -> str:
    """A file that means the same wherever it is read; contains secrets."""
    texts = {**loaded.texts, "retrievalMode": value_text(loaded.settings.retrieval.mode)}
    if loaded.settings.stream_arn is None and texts.pop("streamArn", None) is not None:
        texts["streamName"] = loaded.settings.stream_name
        if loaded.settings.endpoints.region_name is not None:
            texts["regionName"] = loaded.settings.endpoints.region_name
    texts.pop("expandEnvironment", None)  # variables are already replaced
    values = {key.name: texts[key.name] for key in KEYS if key.name in texts}
    values |= {f"{CONF_PREFIX}{name}": value for name, value in loaded.settings.spark.conf}
    return "".join(f"{javaproperties.join_key_value(name, value, ' = ')}\n" for name, value in values.items())


def _in_force(key: Key, loaded: Loaded) -> str:
    value = field_of(loaded.settings, key.target)
    if key.kind.written is not None:
        return key.kind.written(value)
    if isinstance(value, int | float | str | Enum | InitialPosition):
        return value_text(value)
    return loaded.texts.get(key.name, "none")


def _default_in_force(key: Key, settings: Settings) -> str:
    if key.name == "workerId":
        return shown(settings.worker_id)
    return default_of(key).replace("`", "")


def _derived(loaded: Loaded) -> dict[str, str]:
    settings, entries, has_arn = loaded.settings, loaded.entries, "streamArn" in loaded.texts
    found: dict[str, str] = {}
    if has_arn:
        found["streamName"] = "streamArn"
        if settings.stream_arn is None:
            found["streamArn"] = "only its name is used"
    if "regionName" not in entries:
        if has_arn and settings.endpoints.region_name is not None:
            found["regionName"] = "streamArn"
        elif settings.streams.arns and settings.endpoints.region_name is not None:
            found["regionName"] = "streamArns"
    if settings.changes.table is not None and not settings.reads_many:
        found["streamName"] = "tableName.source"
    mode = entries.get("retrievalMode")
    if mode is None or mode.value.strip().upper() == "DEFAULT":
        found["retrievalMode"] = "default"
    if "initialPositionInStreamExtended" in loaded.texts:
        found["initialPositionInStream"] = "initialPositionInStreamExtended"
    if settings.bundled is not None:
        found["executableName"] = settings.bundled
    return found


def default_of(key: Key) -> str:
    if key.default is not None:
        return key.default
    if key.required:
        return "required"
    return value_text(field_of(DEFAULTS, key.target))


def field_of(settings: Settings, target: str) -> object:
    return attrgetter(target)(settings)


def value_text(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case InitialPosition():
            return value.at.value if value.timestamp_s is None else f"{value.timestamp_s:.0f}"
        case Enum():
            return str(value.value)
        case _:
            return str(value)
