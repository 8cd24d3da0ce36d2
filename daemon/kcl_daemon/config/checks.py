"""Checks properties against each other.

`values` has only values that are good by themselves, by key name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.config.children import (
    BACKOFF_FIRST,
    BACKOFF_MOST,
    DEAD_LETTERS,
    FAILURE_POLICY,
    FAILURES_MOST,
    POISON_POLICY,
    POISON_TRIES,
    ChildFailurePolicy,
    ChildSettings,
    FailureSettings,
    PoisonRecordPolicy,
)
from kcl_daemon.config.keys import (
    APPLICATION_NAME,
    FASTEST_READS_MS,
    IDLE_TIME,
    LEADER_HEARTBEAT,
    LEADER_LEASE,
    REGION_NAME,
    STREAM_ARN,
    STREAM_NAME,
)
from kcl_daemon.config.kinds import Key, StreamArn, trimmed
from kcl_daemon.config.metrics_and_page import MetricsLevel, check_admin
from kcl_daemon.config.properties import Notice, Problem, PropertyEntry
from kcl_daemon.config.retrieval import (
    RETRIEVAL_MODE,
    SCHEMA_FAILURE,
    SCHEMA_REGISTRY,
    RetrievalMode,
    RetrievalSettings,
    SchemaRegistry,
)
from kcl_daemon.config.services import GLUE_CREDENTIALS
from kcl_daemon.config.spark import (
    SPARK_ENGINE,
    SPARK_ENGINE_CERTIFICATE,
    SPARK_ENGINE_LISTEN,
    SPARK_ENGINE_TOKEN_FILE,
    SPARK_MASTER,
    SPARK_PIPELINE,
    SPARK_REMOTE,
    SPARK_SPOOL_DIR,
    SPARK_STATE_DIR,
    SPARK_TRANSPORT,
    SPARK_TRIGGER,
)
from kcl_daemon.config.streams import (
    FORMER_GIVEN,
    STREAM_ARNS,
    STREAM_FILTER,
    STREAM_NAMES,
    FormerStreams,
    ListedStream,
)
from kcl_daemon.config.tables import (
    LEASE_BILLING_MODE,
    MIGRATION_BAKE_TIME,
    SIZINGS,
    BillingMode,
    TablesSettings,
    complete_bake_s,
)

_LEASE_DEFAULTS: Final = LeaseSettings()
_CHILD_DEFAULTS: Final = ChildSettings(command=())
_KINESIS_REGION: Final = "kinesisClient.region"
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PLACEHOLDER_ACCOUNT: Final = "000000000000"
HEARTBEATS_IN_A_LEASE: Final = 3  # two may get lost before a live leader counts as dead


def check_together(
    values: dict[str, object], lines: Mapping[str, int], environment: Mapping[str, str]
) -> tuple[list[Problem], list[Notice]]:
    """Adjusts `values` that are too short, too long or impossible."""
    problems = [
        *_heartbeat(values, lines),
        *_backoff(values, lines),
        *_capacities(values, lines),
        *check_admin(values, lines),
    ]
    put_right = [*_idle_time(values, lines), *_bake_time(values, lines)]
    arn = _arn(values, lines, environment)
    return problems, [*put_right, *arn, *_unused(values, lines), *_schemas(values, lines)]


def _heartbeat(values: Mapping[str, object], lines: Mapping[str, int]) -> list[Problem]:
    lease = _number(values, LEADER_LEASE, _LEASE_DEFAULTS.leader_lease_ms)
    heartbeat = _number(values, LEADER_HEARTBEAT, _LEASE_DEFAULTS.leader_heartbeat_ms)
    if heartbeat * HEARTBEATS_IN_A_LEASE < lease:
        return []
    reason = (
        f"the leader heartbeat of {heartbeat} ms must be less than a third of the leader lease of "
        f"{lease} ms; set both {LEADER_HEARTBEAT.name} and {LEADER_LEASE.name}"
    )
    return [_problem(reason, (LEADER_HEARTBEAT, heartbeat), (LEADER_LEASE, lease), lines)]


def _backoff(values: Mapping[str, object], lines: Mapping[str, int]) -> list[Problem]:
    first = _number(values, BACKOFF_FIRST, _CHILD_DEFAULTS.backoff_first_ms)
    most = _number(values, BACKOFF_MOST, _CHILD_DEFAULTS.backoff_most_ms)
    if first <= most:
        return []
    reason = (
        f"the first pause of {first} ms before a restart must not exceed the longest of {most} ms; set "
        f"both {BACKOFF_FIRST.name} and {BACKOFF_MOST.name}"
    )
    return [_problem(reason, (BACKOFF_FIRST, first), (BACKOFF_MOST, most), lines)]


def _capacities(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Problem]:
    """Only the lease table has default capacities (KCL: DdbTableConfig)."""
    for sizing in SIZINGS:
        mode, capacities = sizing.billing_mode, (sizing.read_capacity, sizing.write_capacity)
        if values.get(mode.name) is not BillingMode.PROVISIONED or mode is LEASE_BILLING_MODE:
            continue
        missing = [key.name for key in capacities if not values.get(key.name)]
        if missing:
            reason = f"needs {' and '.join(missing)}, above 0"
            yield Problem(reason, mode.name, BillingMode.PROVISIONED.value, lines[mode.name])


def _unused(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Notice]:
    for sizing in SIZINGS:
        if values.get(sizing.billing_mode.name) is BillingMode.PROVISIONED:
            continue
        for key in (sizing.read_capacity, sizing.write_capacity):
            if values.get(key.name):
                why = f"the table is created on demand; this needs {sizing.billing_mode.name} = PROVISIONED"
                yield Notice("property_has_no_effect", key.name, lines[key.name], {"why": why})


def _schemas(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Notice]:
    if values.get(SCHEMA_REGISTRY.name) is SchemaRegistry.DECODE:
        return
    for name in lines:
        if name == SCHEMA_FAILURE.name or name.startswith("glueClient.") or name == GLUE_CREDENTIALS:
            why = f"no schema registry is used; this needs {SCHEMA_REGISTRY.name} = DECODE"
            yield Notice("property_has_no_effect", name, lines[name], {"why": why})


def _problem(reason: str, one: tuple[Key, int], other: tuple[Key, int], lines: Mapping[str, int]) -> Problem:
    """At the first of two keys that is in the file; the defaults agree, so one is."""
    key, value = one if one[0].name in lines else other
    return Problem(reason, key.name, str(value), lines[key.name])


def _idle_time(values: dict[str, object], lines: Mapping[str, int]) -> list[Notice]:
    pause_ms = values.get(IDLE_TIME.name)
    if not isinstance(pause_ms, int) or pause_ms >= FASTEST_READS_MS:
        return []
    used_ms, why = FASTEST_READS_MS, "Kinesis allows five reads per second and shard"
    if pause_ms == 0:
        # Java ignores a primitive 0. Taken literally, the same file would read seven times as often here.
        used_ms, why = RetrievalSettings().idle_time_between_reads_ms, "0 means the default, as in Java"
    values[IDLE_TIME.name] = used_ms
    facts: dict[str, object] = {"given": pause_ms, "used": used_ms, "why": why}
    return [Notice("property_raised", IDLE_TIME.name, lines[IDLE_TIME.name], facts)]


def _bake_time(values: dict[str, object], lines: Mapping[str, int]) -> list[Notice]:
    given_s = values.get(MIGRATION_BAKE_TIME.name)
    if not isinstance(given_s, int):
        return []
    why = "KCL allows an hour to seven days"
    if given_s == 0:
        # Java ignores a primitive 0. Taken literally it would be an hour, before a step with no way back.
        used_s, why = TablesSettings().complete_bake_s, "0 means the default, as in Java"
    elif (used_s := complete_bake_s(given_s)) == given_s:
        return []
    values[MIGRATION_BAKE_TIME.name] = used_s
    facts: dict[str, object] = {"given": given_s, "used": used_s, "why": why}
    event = "property_raised" if used_s > given_s else "property_lowered"
    return [Notice(event, MIGRATION_BAKE_TIME.name, lines[MIGRATION_BAKE_TIME.name], facts)]


def _arn(
    values: dict[str, object], lines: Mapping[str, int], environment: Mapping[str, str]
) -> Iterator[Notice]:
    """Use only the name of `streamArn` if it cannot be the stream's ARN.

    Java does so always (KCL: KinesisClientLibConfigurator): sample files have a placeholder.
    """
    arn = values.get(STREAM_ARN.name)
    if not isinstance(arn, StreamArn):
        return
    given = values.get(STREAM_NAME.name)
    if given is not None and given != arn.stream_name:
        facts: dict[str, object] = {"given": given, "arn": arn.arn, "used": arn.stream_name}
        yield Notice("property_contradicts_stream_arn", STREAM_NAME.name, lines[STREAM_NAME.name], facts)
    why = _why_name_alone(values, arn)
    if why is None:
        return
    if REGION_NAME.name not in values and not any(environment.get(name) for name in _REGION_VARIABLES):
        values[REGION_NAME.name] = arn.region_name
    del values[STREAM_ARN.name]
    values[STREAM_NAME.name] = arn.stream_name
    facts = {"arn": arn.arn, "used": arn.stream_name, "why": why}
    yield Notice("stream_arn_counts_by_name", STREAM_ARN.name, lines[STREAM_ARN.name], facts)


def _why_name_alone(values: Mapping[str, object], arn: StreamArn) -> str | None:
    """None: calls can use this ARN."""
    key = _KINESIS_REGION if _KINESIS_REGION in values else REGION_NAME.name
    reasons: list[str] = []
    if values.get(key, arn.region_name) != arn.region_name:
        reasons.append(f"it names {arn.region_name} and {key} is {values[key]}")
    if arn.account_id == _PLACEHOLDER_ACCOUNT:
        reasons.append(f"its account {arn.account_id} is a placeholder")
    return f"{', and '.join(reasons)}: only its name is used, as in Java" if reasons else None


def _number(values: Mapping[str, object], key: Key, default: int) -> int:
    number = values.get(key.name, default)
    assert isinstance(number, int), f"{key.name} is a whole number"
    return number


_CONSUMER_ARN: Final = "fanoutConfig.consumerArn"
_METRICS_LEVEL: Final = "metricsLevel"


@dataclass(frozen=True, slots=True)
class _Named:
    """Something named after the application, unless `key` names it.

    Args:
        most: longest application name for it.
        marks: allowed besides letters and digits.
    """

    what: str
    key: str
    most: int
    least: int = 1
    marks: str = "_.-"

    def allows(self, name: str) -> bool:
        return re.fullmatch(rf"(?!AWS/)[A-Za-z0-9{self.marks}]{{{self.least},{self.most}}}", name) is not None


# DynamoDB allows 3 to 255 characters, a folder name 255; the suffix counts.
_TABLES: Final = (
    _Named("the lease table", "tableName", 255, least=3),
    _Named("the worker metrics table", "workerMetricsTableName", 255 - len("-WorkerMetricStats")),
    _Named("the coordinator table", "coordinatorStateTableName", 255 - len("-CoordinatorState")),
)
_CONSUMER: Final = _Named("the fan-out consumer", "fanoutConfig.consumerName", 128)
_NAMESPACE: Final = _Named("the CloudWatch namespace", "metricsNamespace", 255, marks="_.#:/-")
_STATE: Final = _Named("the Spark state folder", SPARK_STATE_DIR.name, 255 - len("-spark"))


def check_names(values: Mapping[str, object], entries: Mapping[str, PropertyEntry]) -> Iterator[Problem]:
    """KCL: ConfigsBuilder has these default names, and does not check them."""
    name = values.get(APPLICATION_NAME.name)
    if not isinstance(name, str):
        return
    refusing = [each for each in _named(values, entries) if not each.allows(name)]
    if refusing:
        entry = entries[APPLICATION_NAME.name]
        yield Problem(_reason(refusing), entry.key, entry.value, entry.line, entry.variable)


def _named(values: Mapping[str, object], entries: Mapping[str, PropertyEntry]) -> Iterator[_Named]:
    """Everything without a name of its own; a bad one counts as its own."""

    def is_given(key: str) -> bool:
        entry = entries.get(key)
        return entry is not None and bool(trimmed(entry.value))

    needed = list(_TABLES)
    if values.get(RETRIEVAL_MODE.name) is RetrievalMode.FANOUT and not is_given(_CONSUMER_ARN):
        needed.append(_CONSUMER)
    if values.get(_METRICS_LEVEL) is not MetricsLevel.NONE:
        needed.append(_NAMESPACE)
    if is_given(SPARK_PIPELINE.name) and not is_given(SPARK_ENGINE.name):
        needed.append(_STATE)
    yield from (each for each in needed if not is_given(each.key))


def _reason(refusing: Sequence[_Named]) -> str:
    least, most = max(each.least for each in refusing), min(each.most for each in refusing)
    marks = "dots, dashes and underscores"
    if list(refusing) == [_NAMESPACE]:
        marks = "_ . # : / -, not beginning with AWS/"
    whats, keys = _and(each.what for each in refusing), _and(each.key for each in refusing)
    return (
        f"not a valid name; allowed: {least} to {most} letters, digits, {marks}, because {whats} "
        f"{'is' if len(refusing) == 1 else 'are'} named after it; to keep the name, set {keys}"
    )


def _and(words: Iterator[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def check_failures(values: Mapping[str, object], entries: Mapping[str, PropertyEntry]) -> Iterator[Problem]:
    for name, reason in _contradictions(values):
        entry = entries[name]
        yield Problem(reason, entry.key, entry.value, entry.line, entry.variable)


def _contradictions(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    poison = values.get(POISON_POLICY.name, PoisonRecordPolicy.RETRY)
    if poison is PoisonRecordPolicy.DEADLETTER and DEAD_LETTERS.name not in values:
        yield POISON_POLICY.name, f"needs {DEAD_LETTERS.name}"
    if poison is not PoisonRecordPolicy.DEADLETTER and DEAD_LETTERS.name in values:
        yield (
            DEAD_LETTERS.name,
            f"needs {POISON_POLICY.name} = {PoisonRecordPolicy.DEADLETTER.value}",
        )
    if poison is PoisonRecordPolicy.RETRY:
        return
    if values.get(FAILURE_POLICY.name) is ChildFailurePolicy.EXIT:
        reason = (
            f"with {FAILURE_POLICY.name} = {ChildFailurePolicy.EXIT.value} the daemon ends before it finds "
            "the record"
        )
        yield POISON_POLICY.name, f"{reason}; keep one of the two"
    if SPARK_PIPELINE.name in values:
        yield POISON_POLICY.name, f"children of a {SPARK_PIPELINE.name} do not process records themselves"
    yield from _too_few(values)


def _too_few(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """If the lease is released before the record is found, the search starts again."""
    defaults = FailureSettings()
    most = values.get(FAILURES_MOST.name, defaults.failures_most)
    tries = values.get(POISON_TRIES.name, defaults.poison_tries)
    assert isinstance(most, int), "a whole number"
    assert isinstance(tries, int), "a whole number"
    if not most or most > tries + 1:
        return
    wrong = FAILURES_MOST.name if FAILURES_MOST.name in values else POISON_TRIES.name
    what = f"a record is set aside after {tries + 1} failures, the lease is released after {most}"
    yield wrong, f"{what}; {FAILURES_MOST.name} must be above {POISON_TRIES.name} + 1, or 0"


_MANY: Final = (STREAM_ARNS, STREAM_NAMES, STREAM_FILTER)
_FAN_OUT_CONSUMER: Final = "fanoutConfig.consumerArn"
_STRATEGY: Final = "formerStreamsLeasesDeletionStrategy"


def check_streams(values: Mapping[str, object], entries: Mapping[str, PropertyEntry]) -> Iterator[Problem]:
    many = next((key for key in _MANY if key.name in values), None)
    if many is None:
        return
    for name, reason in (*_beside(values, many.name), *_among(values)):
        entry = entries[name]
        yield Problem(reason, entry.key, entry.value, entry.line, entry.variable)


def _beside(values: Mapping[str, object], many: str) -> Iterator[tuple[str, str]]:
    for name, reason in (
        (STREAM_NAME.name, f"names one stream, {many} names many; keep one"),
        (STREAM_ARN.name, f"names one stream, {many} names many; keep one"),
        (SPARK_PIPELINE.name, f"a Spark pipeline reads one stream; {many} names many"),
        (
            _FAN_OUT_CONSUMER,
            f"a consumer belongs to one stream; with {many} use fanoutConfig.consumerName",
        ),
    ):
        if name in values:
            yield name, reason


def _among(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    regions = regions_of(values)
    if len(regions) > 1:
        yield STREAM_ARNS.name, f"several regions ({', '.join(regions)}); a daemon reads one region"
    given = values.get(_STRATEGY) is FormerStreams.DELETE_GIVEN
    if given != (FORMER_GIVEN.name in values):
        wrong = _STRATEGY if given else FORMER_GIVEN.name
        other = FORMER_GIVEN.name if given else f"{_STRATEGY} = {FormerStreams.DELETE_GIVEN.value}"
        yield wrong, f"needs {other}"
    named = {each.name for each in _listed(values, STREAM_NAMES)}
    for each in _listed(values, STREAM_ARNS):
        if each.name in named:
            reason = f"{each.name} is in {STREAM_NAMES.name} too; if you mean both, give both by ARN"
            yield STREAM_ARNS.name, reason


def regions_of(values: Mapping[str, object]) -> tuple[str, ...]:
    arns = (each.arn for each in _listed(values, STREAM_ARNS))
    return tuple(dict.fromkeys(arn.split(":")[3] for arn in arns if arn is not None))


def _listed(values: Mapping[str, object], key: Key) -> tuple[ListedStream, ...]:
    found = values.get(key.name, ())
    assert isinstance(found, tuple), f"{key.name} is a list"
    return tuple(each for each in found if isinstance(each, ListedStream))


_SparkProblem = tuple[Key, str]
_AVAILABLE_NOW: Final = "availableNow"


def check_spark(values: Mapping[str, object], entries: Mapping[str, PropertyEntry]) -> Iterator[Problem]:
    for key, reason in (*_place(values), *_engines(values)):
        entry = entries[key.name]
        yield Problem(reason, entry.key, entry.value, entry.line, entry.variable)


def _place(values: Mapping[str, object]) -> Iterator[_SparkProblem]:
    transport = values.get(SPARK_TRANSPORT.name)
    elsewhere = next((key for key in (SPARK_REMOTE, SPARK_MASTER) if _is_elsewhere(values, key)), None)
    if SPARK_REMOTE.name in values:
        if SPARK_MASTER.name in values:
            yield (
                SPARK_MASTER,
                f"the server of {SPARK_REMOTE.name} has its own master; remove this line",
            )
        if transport is not None and transport != "shared":
            yield (
                SPARK_TRANSPORT,
                f"{SPARK_REMOTE.name} needs sparkTransport=shared: the server plans the batches",
            )
        if missing := _missing(values, SPARK_SPOOL_DIR, SPARK_STATE_DIR):
            yield SPARK_REMOTE, f"needs {missing}: folders that the server can also reach"
    elif elsewhere is not None and transport == "local":
        yield SPARK_TRANSPORT, "workers of a cluster cannot read this machine's files; use shared or inline"
    elif transport == "shared" and SPARK_SPOOL_DIR.name not in values:
        yield (
            SPARK_TRANSPORT,
            f"needs {SPARK_SPOOL_DIR.name}: a folder or URI that all Spark workers can reach",
        )
    if (
        "://" in str(values.get(SPARK_SPOOL_DIR.name, ""))
        and transport != "shared"
        and elsewhere is not SPARK_REMOTE
    ):
        yield SPARK_SPOOL_DIR, f"a URI needs {SPARK_TRANSPORT.name}=shared"


def _engines(values: Mapping[str, object]) -> Iterator[_SparkProblem]:
    if SPARK_ENGINE.name in values:
        if SPARK_ENGINE_LISTEN.name in values:
            yield (
                SPARK_ENGINE,
                f"a host feeds another engine or has its own ({SPARK_ENGINE_LISTEN.name}), not both",
            )
        if missing := _missing(values, SPARK_ENGINE_TOKEN_FILE):
            yield SPARK_ENGINE, f"needs {missing}"
    elif SPARK_ENGINE_LISTEN.name in values and (
        missing := _missing(values, SPARK_ENGINE_TOKEN_FILE, SPARK_ENGINE_CERTIFICATE)
    ):
        yield SPARK_ENGINE_LISTEN, f"needs {missing}"
    if values.get(SPARK_TRIGGER.name) == _AVAILABLE_NOW and (
        SPARK_ENGINE.name in values or SPARK_ENGINE_LISTEN.name in values
    ):
        yield (
            SPARK_TRIGGER,
            "a shared engine never ends; give each host its own engine",
        )


def _is_elsewhere(values: Mapping[str, object], key: Key) -> bool:
    return key.name in values and not str(values[key.name]).startswith("local")


def _missing(values: Mapping[str, object], *keys: Key) -> str:
    return " and ".join(key.name for key in keys if key.name not in values)
