"""What single values cannot tell: properties that contradict each other, and values that are put right with a word.

Pure. Works on values that are good by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcl_daemon.config.credentials import GLUE_CREDENTIALS
from kcl_daemon.config.key import Key
from kcl_daemon.config.keys import (
    FASTEST_READS_MS,
    IDLE_TIME,
    LEADER_HEARTBEAT,
    LEADER_LEASE,
    REGION_NAME,
    STREAM_ARN,
    STREAM_NAME,
)
from kcl_daemon.config.keys_admin import check_admin
from kcl_daemon.config.keys_children import BACKOFF_FIRST, BACKOFF_MOST
from kcl_daemon.config.keys_schemas import SCHEMA_FAILURE, SCHEMA_REGISTRY
from kcl_daemon.config.keys_tables import LEASE_BILLING_MODE, MIGRATION_BAKE_TIME, SIZINGS
from kcl_daemon.config.kinds import StreamArn
from kcl_daemon.config.notices import Notice, Problem
from kcl_daemon.config.schema_settings import SchemaRegistry
from kcl_daemon.config.settings import ChildSettings, LeaseSettings, RetrievalSettings
from kcl_daemon.config.table_settings import BillingMode, TablesSettings
from kcl_daemon.leases.table_migration_steps import complete_bake_s

_LEASE_DEFAULTS: Final = LeaseSettings()
_CHILD_DEFAULTS: Final = ChildSettings(command=())
_KINESIS_REGION: Final = "kinesisClient.region"
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PLACEHOLDER_ACCOUNT: Final = "000000000000"
HEARTBEATS_IN_A_LEASE: Final = 3  # two may get lost before a living leader is taken for dead


def across(
    values: dict[str, object], lines: Mapping[str, int], environment: Mapping[str, str]
) -> tuple[list[Problem], list[Notice]]:
    """Check properties against each other; what is too short, too long or cannot be is put right in `values`.

    Args:
        values: by key name, good ones only.
        lines: where each key stands.
        environment: variables of this process.
    """
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
    """A PROVISIONED table needs capacities; only the lease table has defaults (KCL: DdbTableConfig)."""
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
    """What is about a registry that nobody asks."""
    if values.get(SCHEMA_REGISTRY.name) is SchemaRegistry.DECODE:
        return
    for name in lines:
        if name == SCHEMA_FAILURE.name or name.startswith("glueClient.") or name == GLUE_CREDENTIALS:
            why = f"no schema registry is used; this needs {SCHEMA_REGISTRY.name} = DECODE"
            yield Notice("property_has_no_effect", name, lines[name], {"why": why})


def _problem(reason: str, one: tuple[Key, int], other: tuple[Key, int], lines: Mapping[str, int]) -> Problem:
    """Reported at the first of two keys that is in the file; at least one is, as the defaults agree."""
    key, value = one if one[0].name in lines else other
    return Problem(reason, key.name, str(value), lines[key.name])


def _idle_time(values: dict[str, object], lines: Mapping[str, int]) -> list[Notice]:
    pause_ms = values.get(IDLE_TIME.name)
    if not isinstance(pause_ms, int) or pause_ms >= FASTEST_READS_MS:
        return []
    used_ms, why = FASTEST_READS_MS, "Kinesis allows five reads per second and shard"
    if pause_ms == 0:
        # Java passes on no primitive 0. Taken at its word the same file would read seven times as often here.
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
        # Java passes on no primitive 0. Taken at its word it would be an hour, before a step with no way back.
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
    """What `streamArn` says beside the other properties; where it cannot be the stream's own, its name alone counts.

    Java takes the name out of every ARN and nothing else (KCL: KinesisClientLibConfigurator), so that a placeholder, as
    in the sample files of the client libraries, goes unnoticed there.
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
    """Why calls cannot be made with this ARN; None: they can."""
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
