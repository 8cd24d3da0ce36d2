from __future__ import annotations

import difflib
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import javaproperties

from kcl_daemon.config import properties, services
from kcl_daemon.config.changes import SOURCE, reads_changes
from kcl_daemon.config.checks import check_together, regions_of
from kcl_daemon.config.kinds import InvalidValue, Key, StreamArn, is_of_dynamodb, trimmed, truth
from kcl_daemon.config.properties import Notice, Problem, PropertyEntry, expanded, overrides, variable_for
from kcl_daemon.config.retrieval import resolve_mode
from kcl_daemon.config.services import CLIENT_PREFIXES
from kcl_daemon.config.settings import BY_NAME, DEFAULTS, GONE, INERT, KEYS, Settings
from kcl_daemon.config.spark import CONF_PREFIX, REMOVED
from kcl_daemon.config.streams import ListedStream, many_of
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import Randomness
from kcl_daemon.shards.lineage import InitialPosition
from kcl_daemon.text import encodable, on_one_line, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_NEAREST_CUTOFF: Final = 0.75
NAMES: Final = (*BY_NAME, *INERT, *REMOVED)
_KNOWN: Final = {name.lower(): name for name in (*BY_NAME, *INERT)}
# Java refuses unknown properties with these prefixes.
_STRICT_PREFIXES: Final = (*(f"{name}." for name in CLIENT_PREFIXES), *services.BUILDER_PREFIXES)
# Java accepts nested builders (BuilderDynaBean), but not httpClientBuilder.
_CLIENT_BUILDERS: Final = tuple(f"{name}." for name in CLIENT_PREFIXES)
_REFUSED_BUILDER: Final = "httpClientBuilder"
_NESTED: Final = "the daemon has its own timeouts, retries and connections for AWS calls"
# Of Jinja, ERB, Helm, a shell.
_TEMPLATE: Final = re.compile(r"<%|\{\{|\$\{[A-Za-z_]|(?:\A|[/._-])\$[A-Za-z_]")
_NO_TEMPLATES: Final = ("executableName", "recordFilter")
_SAME_THING: Final = {"adminToken": "adminTokenFile", "adminTokenFile": "adminToken"}
INSTEAD: Final = {
    "streamName": ("streamArn", "streamArns", "streamNames", "streamFilter", "tableName.source"),
    "executableName": ("landing", "sparkPipeline"),
}
_EXAMPLES: Final = {
    "executableName": "executableName = PROGRAM ARGUMENTS",
    "applicationName": "applicationName = NAME_OF_THE_APPLICATION",
    "streamName": "streamName = NAME_OF_THE_STREAM (or streamArn = ITS_ARN; many: streamNames, streamArns, streamFilter; "
    "a DynamoDB table: tableName.source)",
}
FILE_BYTES_MAX: Final = 1024 * 1024
AnySettings = TypeVar("AnySettings", bound="DataclassInstance")
_JSON: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*[{\"\]])")
RELAY: Final = (sys.executable, "-m", "kcl_landing.relay")
"""The socket is added later."""


@dataclass(slots=True)
class Reading:
    file: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    entries: dict[str, PropertyEntry] = field(default_factory=dict[str, PropertyEntry])
    others: dict[str, PropertyEntry] = field(default_factory=dict[str, PropertyEntry])
    notices: list[Notice] = field(default_factory=list[Notice])
    problems: list[Problem] = field(default_factory=list[Problem])
    unknown: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    spark_entries: dict[str, PropertyEntry] = field(default_factory=dict[str, PropertyEntry])
    spark_conf: dict[str, str] = field(default_factory=dict[str, str])
    texts: dict[str, str] = field(default_factory=dict[str, str])

    def take(self, entry: PropertyEntry) -> None:
        key = BY_NAME.get(services.canonical_name(entry.key) or entry.key)
        if key is not None:
            if key.name == "streamName" and is_of_dynamodb(trimmed(entry.value)):
                key = BY_NAME["streamArn"]  # the adapter 1.x knows a stream by its ARN only
            self._instead_of_another(key, entry)
            self._last_wins(self.entries, key.name, entry)
        elif entry.key.startswith(CONF_PREFIX):
            self._last_wins(self.spark_entries, entry.key.removeprefix(CONF_PREFIX), entry)
        else:
            self._last_wins(self.others, entry.key, entry)

    def _instead_of_another(self, key: Key, entry: PropertyEntry) -> None:
        """A variable also overrides the other property for the same thing."""
        other = _SAME_THING.get(key.name, "")
        before = self.entries.get(other)
        if entry.variable is not None and before is not None and before.variable is None:
            del self.entries[other]
            self._note_overridden(entry, before)

    def _note_overridden(self, entry: PropertyEntry, before: PropertyEntry) -> None:
        facts: dict[str, object] = {"ignored_line": before.line, "ignored_key": shown(before.key)}
        self.notices.append(Notice("property_overridden", shown(entry.key), 0, facts, "info", entry.variable))

    def _last_wins(self, entries: dict[str, PropertyEntry], name: str, entry: PropertyEntry) -> None:
        before = entries.pop(name, None)
        entries[name] = entry
        if before is None or before.value == entry.value:
            return
        if entry.variable is not None:
            self._note_overridden(entry, before)
            return
        self._notice(
            "property_given_twice", entry, {"ignored_line": before.line, "ignored_key": shown(before.key)}
        )

    def values(self) -> dict[str, object]:
        for entry in self.others.values():
            self._other(entry)
        expands = self._expands()
        self._read_spark_conf(expands=expands)
        values: dict[str, object] = {}
        for key in KEYS:
            given = self.entries.get(key.name)
            if given is None or (key.blank_is_absent and not trimmed(given.value)):
                continue
            try:
                text = expanded(given.value, self.environment) if expands else given.value
                values[key.name] = key.kind.read(text)
            except InvalidValue as refusal:
                self._refuse(given, f"{refusal}; allowed: {key.kind.allowed}")
            else:
                self.texts[key.name] = trimmed(text)
                if why := GONE.get((key.name, trimmed(text).upper())):
                    self._notice("property_has_no_effect", given, {"why": why})
                if key.name not in _NO_TEMPLATES and _TEMPLATE.search(text):
                    self._notice("template_not_rendered", given, {"advice": _about_template(given.key, text)})
                if key.name in services.SPELLINGS:
                    self.notices += services.notices(text, key=given.key, line=given.line)
        return values

    def _refuse(self, entry: PropertyEntry, reason: str) -> None:
        self.problems.append(Problem.at(entry, reason))

    def _read_spark_conf(self, *, expands: bool) -> None:
        for name, given in self.spark_entries.items():
            try:
                text = expanded(given.value, self.environment) if expands else given.value
            except InvalidValue as refusal:
                self._refuse(given, str(refusal))
            else:
                self.spark_conf[name] = trimmed(text)

    def _expands(self) -> bool:
        given = self.entries.get("expandEnvironment")
        try:
            return given is not None and truth().read(given.value)
        except InvalidValue:
            return False

    def _other(self, entry: PropertyEntry) -> None:
        if entry.key in REMOVED:
            self._refuse(entry, REMOVED[entry.key])
            return
        why = INERT.get(entry.key) or (_NESTED if _is_nested(entry.key) else None)
        if why is not None:
            self._notice("property_has_no_effect", entry, {"why": why})
            return
        nearest = nearest_name(entry.key)
        if entry.key.startswith(_STRICT_PREFIXES):
            meant = "" if nearest is None else f"; {nearest} is"
            self._refuse(entry, f"not a known property, and the Java daemon refuses it{meant}")
            return
        if nearest is not None:
            self.unknown[nearest] = (shown(entry.key), entry.line)
        self._notice("unknown_property", entry, {} if nearest is None else {"nearest": nearest})

    def _notice(self, event: str, entry: PropertyEntry, facts: Mapping[str, object]) -> None:
        self.notices.append(Notice(event, shown(entry.key), entry.line, facts, variable=entry.variable))

    def check_required(self, values: Mapping[str, object]) -> None:
        written = (services.canonical_name(each.key or "") or each.key for each in self.problems)
        bad = {BY_NAME[key].name for key in written if key in BY_NAME}
        for key in KEYS:
            enough = (key.name, *INSTEAD.get(key.name, ()))
            if not key.required or any(each in values or each in bad for each in enough):
                continue
            reason = f"is missing; add a line: {_EXAMPLES[key.name]}"
            if key.name in self.unknown:
                spelling, line = self.unknown[key.name]
                reason += f" (line {line} has {spelling}, which is not the same)"
            self.problems.append(Problem(reason, key.name))

    def in_order(self) -> tuple[Notice, ...]:
        located = (
            replace(each, variable=self._variable(each.key)) if each.variable is None else each
            for each in self.notices
        )
        return tuple(sorted(located, key=lambda each: each.line))

    def failure(self) -> ConfigurationError:
        located = (
            replace(each, variable=each.variable or self._variable(each.key)) if each.line == 0 else each
            for each in map(self._template_or, self.problems)
        )
        ordered = sorted(located, key=lambda each: (each.line is None, each.line or 0))
        return ConfigurationError("\n".join(each.rendered(self.file) for each in ordered))

    def _template_or(self, problem: Problem) -> Problem:
        key, text = problem.key, problem.value or ""
        if key is None or not _TEMPLATE.search(text) or ("${" in text and self._expands()):
            return problem
        return replace(
            problem, reason=f"this is a template, and here it is plain text: {_about_template(key, text)}"
        )

    def _variable(self, key: str | None) -> str | None:
        entry = self.entries.get(key or "")
        return None if entry is None else entry.variable


def _about_template(key: str, text: str) -> str:
    more = ", or add expandEnvironment = true" if "${" in text else ""
    return f"render the file, or set {variable_for(key)}{more}"


def _is_nested(key: str) -> bool:
    steps = key.split(".")
    return key.startswith(_CLIENT_BUILDERS) and len(steps) > 2 and steps[1] != _REFUSED_BUILDER


def nearest_name(key: str) -> str | None:
    found = difflib.get_close_matches(key[:100].lower(), _KNOWN, n=1, cutoff=_NEAREST_CUTOFF)
    return _KNOWN[found[0]] if found else None


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
