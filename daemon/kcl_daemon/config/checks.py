"""`values` has only values that are valid by themselves, by key name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from kcl_daemon.config.changes import LOCAL_REGION, SOURCE, change_notices, not_of_changes
from kcl_daemon.config.children import ChildFailurePolicy, LaneCounts, PoisonRecordPolicy
from kcl_daemon.config.dead_letters import OVERFLOW_FORM, Destination
from kcl_daemon.config.kinds import StreamArn, trimmed
from kcl_daemon.config.landing import refused
from kcl_daemon.config.metrics_and_page import LOOPBACK, MetricsLevel, is_loopback
from kcl_daemon.config.properties import Notice, Problem, PropertyEntry
from kcl_daemon.config.retrieval import FASTEST_READS_MS, RetrievalMode, SchemaRegistry
from kcl_daemon.config.settings import BY_NAME, DEFAULTS
from kcl_daemon.config.streams import FormerStreams, ListedStream, many_of
from kcl_daemon.config.tables import BillingMode, complete_bake_s
from kcl_daemon.leases.lease import TableStream
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.text import duration

# A unit of time is doubted below these milliseconds, else below a hundredth of the default.
_LEAST_MS: Final = {
    "failoverTimeMillis": 1_000,
    "maxRecordAgeMillis": 1_000,
    "childStuckTimeoutMillis": 1_000,
    "leaseAssignmentIntervalMillis": 1_000,
    "batchWindowMillis": 50,
}
_MOST_S: Final = 30_000
Values = Mapping[str, object]
Entries = Mapping[str, PropertyEntry]
Lines = Mapping[str, int]

_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PLACEHOLDER_ACCOUNT: Final = "000000000000"
HEARTBEATS_IN_A_LEASE: Final = 3  # two may get lost before a live leader counts as dead
_CAPACITIES: Final = {
    "leaseTableBillingMode": ("initialLeaseTableReadCapacity", "initialLeaseTableWriteCapacity"),
    "workerMetricsBillingMode": ("workerMetricsReadCapacity", "workerMetricsWriteCapacity"),
    "coordinatorStateBillingMode": ("coordinatorStateReadCapacity", "coordinatorStateWriteCapacity"),
}
# Java ignores 0 and `false` of unboxed properties (KCL: ConfigurationSettableUtils).
_JAVA_USES: Final = {
    "cleanupLeasesUponShardCompletion": "true",
    "fanoutConfig.retryBackoffMillis": "1000",
    "schedulerInitializationBackoffTimeMillis": "1000",
    "taskBackoffTimeMillis": "500",
}


def check_together(
    values: dict[str, object], entries: Entries, environment: Mapping[str, str]
) -> tuple[list[Problem], list[Notice]]:
    """Corrects `values` that are too short, too long or impossible."""
    lines = {name: entry.line for name, entry in entries.items()}
    # With a landing only kcl-daemon spark-submit uses sparkPipeline.
    own = {name: values[name] for name in values if name != "sparkPipeline" or "landing" not in values}
    found = (
        *_names(own, entries),
        *_streams(own),
        *_failures(own),
        *(refused(own) if "landing" in own else ()),
        *not_of_changes(own),
        *_spark(own),
        *_lanes(own),
        *_run_until(own),
        *_batches(own),
        *_auto_pace(values),
    )
    problems = [
        *_heartbeat(values, lines),
        *_backoff(values, lines),
        *_capacities(values, lines),
        *_admin(values, lines),
        *(Problem.at(entries[name], reason) for name, reason in found),
    ]
    notices = [
        *_idle_time(values, lines),
        *_bake_time(values, lines),
        *_units(values, lines),
        *_arn(values, lines, environment),
        *_unused(values, lines),
        *_schemas(values, lines),
        *_lane_notices(values, lines),
        *_standby(values, lines),
        *_letter_notices(values, lines),
        *_java_differences(values, lines),
        *_landing(values, lines),
        *change_notices(values, lines),
    ]
    return problems, notices


def _run_until(values: Values) -> _Found:
    position = values.get("initialPositionInStreamExtended") or values.get("initialPositionInStream")
    if "runUntil" in values and (not isinstance(position, InitialPosition) or position.at is StartAt.LATEST):
        reason = (
            "needs initialPositionInStream=TRIM_HORIZON, or initialPositionInStreamExtended: with LATEST a shard that had no "
            "records in one run begins anew at the latest one in the next, without those between"
        )
        yield "runUntil", reason
    if "runUntil" in values and "sparkPipeline" in values:
        yield "runUntil", "a sparkPipeline ends with sparkTrigger=availableNow instead; remove this line"


def _number(values: Values, name: str) -> int:
    number = values.get(name, attrgetter(BY_NAME[name].target)(DEFAULTS))
    assert isinstance(number, int), f"{name} is a whole number"
    return number


def _heartbeat(values: Values, lines: Lines) -> Iterator[Problem]:
    lease, heartbeat = _number(values, "leaderLeaseMillis"), _number(values, "leaderHeartbeatMillis")
    if heartbeat * HEARTBEATS_IN_A_LEASE >= lease:
        reason = (
            f"the leader heartbeat of {heartbeat} ms must be less than a third of the leader lease of "
            f"{lease} ms; set both leaderHeartbeatMillis and leaderLeaseMillis"
        )
        yield _of_two(reason, {"leaderHeartbeatMillis": heartbeat, "leaderLeaseMillis": lease}, lines)


def _backoff(values: Values, lines: Lines) -> Iterator[Problem]:
    first = _number(values, "childRestartBackoffMillis")
    most = _number(values, "childRestartBackoffMaxMillis")
    if first > most:
        reason = (
            f"the first pause of {first} ms before a restart must not exceed the longest of {most} ms; set "
            "both childRestartBackoffMillis and childRestartBackoffMaxMillis"
        )
        yield _of_two(
            reason, {"childRestartBackoffMillis": first, "childRestartBackoffMaxMillis": most}, lines
        )


def _of_two(reason: str, used: Mapping[str, int], lines: Lines) -> Problem:
    """Reported for the first of two properties that is in the file; the defaults agree, so one is."""
    name = next(each for each in used if each in lines)
    return Problem(reason, name, str(used[name]), lines[name])


def _capacities(values: Values, lines: Lines) -> Iterator[Problem]:
    """Only the lease table has default capacities (KCL: DdbTableConfig)."""
    for mode, capacities in _CAPACITIES.items():
        if values.get(mode) is not BillingMode.PROVISIONED or mode == "leaseTableBillingMode":
            continue
        missing = [each for each in capacities if not values.get(each)]
        if missing:
            reason = f"needs {' and '.join(missing)}, above 0"
            yield Problem(reason, mode, BillingMode.PROVISIONED.value, lines[mode])


def _admin(values: Values, lines: Lines) -> Iterator[Problem]:
    token, file = "adminToken" in lines, "adminTokenFile" in lines
    if token and file:
        reason = "and adminToken are both set; keep one"
        yield Problem(reason, "adminTokenFile", None, lines["adminTokenFile"])
    where = str(values.get("adminAddress", LOOPBACK))
    if "adminPort" in values and not token and not file and not is_loopback(where):
        reason = "other hosts can reach this address, so it needs adminToken or adminTokenFile"
        yield Problem(reason, "adminAddress", where, lines["adminAddress"])


def _unused(values: Values, lines: Lines) -> Iterator[Notice]:
    for mode, capacities in _CAPACITIES.items():
        if values.get(mode) is BillingMode.PROVISIONED:
            continue
        for name in capacities:
            if values.get(name):
                yield _no_effect(
                    name, lines, f"the table is created on demand; this needs {mode} = PROVISIONED"
                )


def _standby(values: Values, lines: Lines) -> Iterator[Notice]:
    bundled = next((name for name in ("landing", "sparkPipeline") if name in values), None)
    if bundled is not None and values.get("childStandbyMillis"):
        yield _no_effect("childStandbyMillis", lines, f"the children of a {bundled} start at once")


def _landing(values: Values, lines: Lines) -> Iterator[Notice]:
    if "landing" not in values:
        for name in lines:
            if name.startswith("landing"):
                yield _no_effect(name, lines, "records are not landed; this needs landing")
    elif "sparkPipeline" in values:
        facts = {
            "advice": "the daemon only writes the landing log; kcl-daemon spark-submit runs this pipeline"
        }
        yield Notice(
            "pipeline_reads_the_landing", "sparkPipeline", lines["sparkPipeline"], facts, level="info"
        )


def _schemas(values: Values, lines: Lines) -> Iterator[Notice]:
    if values.get("schemaRegistry") is SchemaRegistry.DECODE:
        return
    for name in lines:
        if name in {"schemaRegistryFailure", "AwsCredentialsProviderGlue"} or name.startswith("glueClient."):
            yield _no_effect(name, lines, "no schema registry is used; this needs schemaRegistry = DECODE")


def _lane_counts(values: Values) -> LaneCounts:
    counts = values.get("shardConcurrency", DEFAULTS.concurrency.lanes)
    assert isinstance(counts, LaneCounts)
    return counts


def _lane_notices(values: Values, lines: Lines) -> Iterator[Notice]:
    for name in ("shardOrder", "shardConcurrencyWindowBytes"):
        if name in values and _lane_counts(values).most == 1:
            yield _no_effect(name, lines, "each shard has one child; this needs shardConcurrency above 1")


def _no_effect(name: str, lines: Lines, why: str) -> Notice:
    return Notice("property_has_no_effect", name, lines[name], {"why": why})


def _java_differences(values: Values, lines: Lines) -> Iterator[Notice]:
    for name, java_uses in _JAVA_USES.items():
        value = values.get(name)
        if value is False or value == 0:
            facts = {"value": value, "java_uses": java_uses}
            yield Notice("property_honoured_unlike_java", name, lines[name], facts, level="info")


def _is_auto(values: Values) -> bool:
    return values.get("idleTimeBetweenReadsInMillis", "") is None


def _auto_pace(values: Values) -> _Found:
    name = "millisBehindLatestThresholdForReducedTps"
    if _is_auto(values) and values.get(name):
        yield (
            name,
            "idleTimeBetweenReadsInMillis=auto itself decides how often a shard is read; remove one of both lines",
        )


def _idle_time(values: dict[str, object], lines: Lines) -> Iterator[Notice]:
    name = "idleTimeBetweenReadsInMillis"
    if _is_auto(values):
        return
    pause_ms = _number(values, name)
    if pause_ms == 0:
        # Java ignores a primitive 0. Taken literally, the same file would read seven times as often here.
        used_ms, why = _number({}, name), "0 means the default, as in Java"
    else:
        used_ms = max(pause_ms, FASTEST_READS_MS)
        why = "Kinesis allows five reads per second and shard"
    yield from _adjusted(values, lines, name, used_ms, why)


def _bake_time(values: dict[str, object], lines: Lines) -> Iterator[Notice]:
    name = "tableMigrationCompleteBakeTimeSeconds"
    given_s = _number(values, name)
    used_s, why = complete_bake_s(given_s), "KCL allows an hour to seven days"
    if given_s == 0:
        # Java ignores a primitive 0. Taken literally it would be an hour, before a step with no way back.
        used_s, why = DEFAULTS.tables.complete_bake_s, "0 means the default, as in Java"
    yield from _adjusted(values, lines, name, used_s, why)


def _units(values: Values, lines: Lines) -> Iterator[Notice]:
    for name in lines:
        value = values.get(name)
        if not isinstance(value, int):
            continue
        if name.endswith("Millis"):
            default = attrgetter(BY_NAME[name].target)(DEFAULTS) or 0
            doubted = 0 < value < _LEAST_MS.get(name, default // 100)
            means, meant = duration(value / 1000), f"if seconds are meant, write {value * 1000}"
        else:
            doubted = name == "timeoutInSeconds" and value >= _MOST_S
            means, meant = duration(value), f"if milliseconds are meant, write {value // 1000}"
        if doubted:
            facts = {"value": value, "means": means, "advice": meant}
            yield Notice("time_unit_doubtful", name, lines[name], facts)


def _adjusted(values: dict[str, object], lines: Lines, name: str, used: int, why: str) -> Iterator[Notice]:
    given = values.get(name)
    if isinstance(given, int) and given != used:
        values[name] = used
        facts: dict[str, object] = {"given": given, "used": used, "why": why}
        yield Notice("property_raised" if used > given else "property_lowered", name, lines[name], facts)


def _arn(values: dict[str, object], lines: Lines, environment: Mapping[str, str]) -> Iterator[Notice]:
    """Java always uses only the name (KCL: KinesisClientLibConfigurator): sample files have a placeholder."""
    arn = values.get("streamArn")
    if not isinstance(arn, StreamArn):
        return
    given = values.get("streamName")
    if given is not None and given != arn.stream_name:
        facts: dict[str, object] = {"given": given, "arn": arn.arn, "used": arn.stream_name}
        yield Notice("property_contradicts_stream_arn", "streamName", lines["streamName"], facts)
    why = None if arn.is_of_dynamodb else _why_name_alone(values, arn)
    if why is None:
        return
    if "regionName" not in values and not any(environment.get(name) for name in _REGION_VARIABLES):
        values["regionName"] = arn.region_name
    del values["streamArn"]
    values["streamName"] = arn.stream_name
    facts = {"arn": arn.arn, "used": arn.stream_name, "why": why}
    yield Notice("stream_arn_counts_by_name", "streamArn", lines["streamArn"], facts)


def _why_name_alone(values: Values, arn: StreamArn) -> str | None:
    name = "kinesisClient.region" if "kinesisClient.region" in values else "regionName"
    reasons: list[str] = []
    if values.get(name, arn.region_name) != arn.region_name:
        reasons.append(f"it names {arn.region_name} and {name} is {values[name]}")
    if arn.account_id == _PLACEHOLDER_ACCOUNT:
        reasons.append(f"its account {arn.account_id} is a placeholder")
    return f"{', and '.join(reasons)}: only its name is used, as in Java" if reasons else None


_Found = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Named:
    """`marks` are allowed in such names."""

    what: str
    key: str
    most: int
    least: int = 1
    marks: str = "_.-"


# The suffix counts.
_TABLES: Final = (
    _Named("the lease table", "tableName", 255, least=3),
    _Named("the worker metrics table", "workerMetricsTableName", 255 - len("-WorkerMetricStats")),
    _Named("the coordinator table", "coordinatorStateTableName", 255 - len("-CoordinatorState")),
)
_CONSUMER: Final = _Named("the fan-out consumer", "fanoutConfig.consumerName", 128)
_NAMESPACE: Final = _Named("the CloudWatch namespace", "metricsNamespace", 255, marks="_.#:/-")
_STATE: Final = _Named("the Spark state folder", "sparkStateDir", 255 - len("-spark"))


def _names(values: Values, entries: Entries) -> _Found:
    """KCL: ConfigsBuilder has these default names, and does not check them."""
    name = values.get("applicationName")
    if not isinstance(name, str):
        return
    refusing = [
        each
        for each in _named(values, entries)
        if not re.fullmatch(rf"(?!AWS/)[A-Za-z0-9{each.marks}]{{{each.least},{each.most}}}", name)
    ]
    if refusing:
        yield "applicationName", _reason(refusing)


def _named(values: Values, entries: Entries) -> Iterator[_Named]:
    def is_given(key: str) -> bool:
        entry = entries.get(key)
        return entry is not None and bool(trimmed(entry.value))

    needed = list(_TABLES)
    if values.get("retrievalMode") is RetrievalMode.FANOUT and not is_given("fanoutConfig.consumerArn"):
        needed.append(_CONSUMER)
    if values.get("metricsLevel") is not MetricsLevel.NONE:
        needed.append(_NAMESPACE)
    if "sparkPipeline" in values:
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


def _failures(values: Values) -> _Found:
    poison = values.get("poisonRecordPolicy", PoisonRecordPolicy.RETRY)
    if poison is PoisonRecordPolicy.DEADLETTER and "deadLetterDestination" not in values:
        yield "poisonRecordPolicy", "needs deadLetterDestination"
    has_way = poison is PoisonRecordPolicy.SKIP or "deadLetterDestination" in values
    if "maxRecordAgeMillis" in values and not has_way:
        yield "maxRecordAgeMillis", "needs deadLetterDestination, or poisonRecordPolicy = SKIP"
    for key in ("deadLetterDestination", "maxRecordAgeMillis") if "sparkPipeline" in values else ():
        if key in values:
            yield key, "children of a sparkPipeline do not process records themselves"
    if "deadLetterOverflow" in values and "deadLetterDestination" not in values:
        yield "deadLetterOverflow", "needs deadLetterDestination"
    if poison is PoisonRecordPolicy.RETRY:
        if "maxRecordAttempts" in values:
            yield "maxRecordAttempts", "needs poisonRecordPolicy = DEADLETTER or SKIP"
        return
    if values.get("childFailurePolicy") is ChildFailurePolicy.EXIT:
        reason = (
            "with childFailurePolicy = EXIT the daemon ends before it finds the record; keep one of the two"
        )
        yield "poisonRecordPolicy", reason
    if "sparkPipeline" in values:
        yield "poisonRecordPolicy", "children of a sparkPipeline do not process records themselves"
    yield from _too_few(values)


def _letter_notices(values: Values, lines: Lines) -> Iterator[Notice]:
    place, name = values.get("deadLetterDestination"), "deadLetterOverflow"
    if not isinstance(place, Destination):
        return
    if place.limit is None:
        if name in values:
            yield _no_effect(name, lines, "deadLetterDestination takes letters of any size")
    elif name not in values:
        advice = f"set {name} = {OVERFLOW_FORM} for larger ones"
        facts = {"limit": place.limit[0], "largest_record": place.limit[1], "advice": advice}
        key = "deadLetterDestination"
        yield Notice("dead_letters_may_not_fit", key, lines[key], facts)


def _too_few(values: Values) -> _Found:
    """The search starts again if the lease is released before the record is found."""
    most, tries = _number(values, "childMaxFailures"), _number(values, "poisonRecordMaxFailures")
    if not most or most > tries + 1:
        return
    wrong = "childMaxFailures" if "childMaxFailures" in values else "poisonRecordMaxFailures"
    what = f"a record is set aside after {tries + 1} failures, the lease is released after {most}"
    yield wrong, f"{what}; childMaxFailures must be above poisonRecordMaxFailures + 1, or 0"


def _streams(values: Values) -> _Found:
    many = many_of(values)
    if many is None:
        return
    one = f"names one stream, {many} names many; keep one"
    names = [each.name for each in (*_listed(values, "streamArns"), *_listed(values, "streamNames"))]
    twice = next((name for name in names if names.count(name) > 1), None)
    if "landing" in values and twice is not None:
        yield (
            "landing",
            f"two streams are named {twice}, and would share a folder; give each a daemon and a landing",
        )
    for name, reason in {
        "streamName": one,
        "streamArn": one,
        "sparkPipeline": f"a Spark pipeline reads one stream; {many} names many",
        "fanoutConfig.consumerArn": f"a consumer belongs to one stream; with {many} use fanoutConfig.consumerName",
    }.items():
        if name in values:
            yield name, reason
    regions = regions_of(values)
    if len(regions) > 1:
        yield "streamArns", f"several regions ({', '.join(regions)}); a daemon reads one region"
    yield from _former(values)
    named = {each.name for each in _listed(values, "streamNames")}
    for each in _listed(values, "streamArns"):
        if each.name in named:
            reason = f"{each.name} is in streamNames too; if you mean both, give both by ARN"
            yield "streamArns", reason


def _former(values: Values) -> _Found:
    strategy, given = "formerStreamsLeasesDeletionStrategy", "streamIdentifiersForLeaseCleanup"
    needs_given = values.get(strategy) is FormerStreams.DELETE_GIVEN
    if needs_given and given not in values:
        yield strategy, f"needs {given}"
    if given in values and not needs_given:
        yield given, f"needs {strategy} = {FormerStreams.DELETE_GIVEN.value}"


def regions_of(values: Values) -> tuple[str, ...]:
    """Without DynamoDB Local's."""
    one, arns = values.get("streamArn"), [each.arn for each in _listed(values, "streamArns")]
    given = [*([one.arn] if isinstance(one, StreamArn) else []), *(arn for arn in arns if arn is not None)]
    return tuple(dict.fromkeys(where for arn in given if (where := arn.split(":")[3]) != LOCAL_REGION))


def _listed(values: Values, name: str) -> tuple[ListedStream, ...]:
    found = values.get(name, ())
    assert isinstance(found, tuple), f"{name} is a list"
    return tuple(each for each in found if isinstance(each, ListedStream))


def _spark(values: Values) -> _Found:
    if "sparkPipeline" in values and values.get("childPreload"):
        yield "childPreload", "children of a sparkPipeline cannot be forked from a template; remove this line"
    if "sparkPipeline" in values and "://" in str(values.get("sparkStateDir")):
        yield "sparkStateDir", "a URI, which only Spark elsewhere can have (landing); give a local folder"


def _lanes(values: Values) -> _Found:
    counts, of_streams = _lane_counts(values), [name for name, _ in _lane_counts(values).of_streams]
    if "sparkPipeline" in values and counts.most > 1:
        yield (
            "shardConcurrency",
            "a sparkPipeline reads a shard with one child; Spark has its own concurrency; remove this line",
        )
    if not of_streams:
        return
    if "streamName" in values or "streamArn" in values:
        yield (
            "shardConcurrency",
            f"this daemon reads one stream; give its number alone, without {of_streams[0]}=...",
        )
    elif "streamFilter" not in values:
        names = [each.name for each in (*_listed(values, "streamNames"), *_listed(values, "streamArns"))]
        known = {stream.table if (stream := TableStream.of(name)) else name for name in names}
        known.add(str(values.get(SOURCE)))
        for name in of_streams:
            if name not in known:
                yield (
                    "shardConcurrency",
                    f"{name} is not in streamNames or streamArns; correct or remove {name}=...",
                )


def _batches(values: Values) -> _Found:
    for name in ("batchWindowMillis", "batchMaxRecords", "batchMaxBytes"):
        if "sparkPipeline" in values and name in values:
            yield name, "a sparkPipeline makes its own batches, see sparkTrigger; remove this line"
