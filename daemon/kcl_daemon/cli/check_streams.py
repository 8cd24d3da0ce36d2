"""Asks Kinesis whether a daemon could read a stream, by polling or by enhanced fan-out. Changes nothing.

Owns which calls are tried and what is said about them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from kcl_daemon.app_streams import streams_of
from kcl_daemon.cli.failures import advice_for
from kcl_daemon.cli.findings import Finding, not_tried, tried
from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.streams import leases_of, refuse_other_kind
from kcl_daemon.errors import AwsError, ConfigurationError, InvalidRequest
from kcl_daemon.leases.lease import Lease
from kcl_daemon.observe.logs import build_log
from kcl_daemon.observe.redact import masked, on_one_line
from kcl_daemon.ports import IteratorKind, Kinesis, ReadFrom, StreamRef, Table
from kcl_daemon.ports_fan_out import Consumer, ConsumerName, ConsumerStatus
from kcl_daemon.shards.former import finished_but_open, of_former_stream
from kcl_daemon.shards.shard import Shard
from kcl_daemon.system import SystemClock

_REGISTER: Final = "RegisterStreamConsumer"
_A_CONSUMER: Final = "it would register a consumer, which costs money"
_SUBSCRIBE: Final = "SubscribeToShard"
_POSITIONS_MOST: Final = 5
_ANOTHER: Final = (
    "does applicationName belong to an application that reads another stream? Then use a new one. If "
    "the stream was recreated, start over with `kcl-daemon leases reset`"
)
_A_SUBSCRIPTION: Final = "it would interrupt the worker that reads the shard"


class Consumers(Protocol):
    """What is asked about consumers: a part of the port FanOut."""

    async def describe_consumer(self, consumer: ConsumerName | str) -> Consumer | None:
        """As the port FanOut says."""
        ...


async def stream_findings(
    settings: Settings, stream: StreamRef, kinesis: Kinesis, consumers: Consumers
) -> list[Finding]:
    """Whether the stream is there and can be read as the settings say."""
    findings: list[Finding] = []
    summary = await tried(findings, f"stream {stream.name}", lambda: kinesis.describe_stream(stream))
    if summary is None:
        return findings
    findings.append((summary.status in {"ACTIVE", "UPDATING"}, f"stream {summary.name}: {summary.status}"))
    shards = await tried(findings, "ListShards", lambda: kinesis.list_shards(stream))
    if shards:
        findings.append((True, f"ListShards: {len(shards)} shards"))
    fan_out = settings.retrieval.mode is RetrievalMode.FANOUT
    if fan_out:
        findings += await _fan_out(settings, summary.arn, consumers)
    if shards and (not fan_out or settings.fan_out.fallback_to_polling):
        findings += await _polling(stream, shards[-1], kinesis)
    return findings


async def lease_findings(settings: Settings, kinesis: Kinesis, table: Table) -> list[Finding]:
    """Whether the leases that there are can be those of the stream of this file: by shards, and by their positions."""
    try:
        if await table.describe() is None:
            return []
        await refuse_other_kind(table, many=settings.reads_many)
        leases = await leases_of(table)
        if settings.reads_many:
            log, clock = (
                build_log(level="error", form="console", stream=sys.stderr, clock=SystemClock()),
                SystemClock(),
            )
            await streams_of(settings, kinesis, clock, log, table=table).prepare()
            return [(True, f"leases: {len(leases)}")] if leases else []
        stream = StreamRef(settings.stream_name, settings.stream_arn)
        shards = await kinesis.list_shards(stream)
    except ConfigurationError as error:
        return [(False, masked(on_one_line(f"leases: {error}")))]
    except AwsError:
        return []  # it has been told of table and stream
    return await _compared(leases, shards, stream, kinesis) if leases else []


async def _compared(
    leases: Sequence[Lease], shards: Sequence[Shard], stream: StreamRef, kinesis: Kinesis
) -> list[Finding]:
    """The leases with the shards; of the checkpoints a few are tried."""
    unfinished = [lease for lease in leases if not lease.is_finished]
    listed = {shard.shard_id for shard in shards}
    here = [lease for lease in unfinished if lease.shard_id in listed]
    if of_former_stream(leases, shards) or (unfinished and not here):
        return [(False, f"leases: they belong to another stream than {stream.name}; {_ANOTHER}")]
    numbered = [lease for lease in here if not lease.checkpoint.is_sentinel][:_POSITIONS_MOST]
    refused = [each for lease in numbered if (each := await _refused(lease, stream, kinesis)) is not None]
    if refused:
        return refused[:1]
    told = (
        f"leases: {len(here)} unfinished for {len(shards)} listed shards; {len(numbered)} checkpoints tried"
    )
    if not (stuck := finished_but_open(leases, shards)):
        return [(True, told)]
    names = ", ".join(lease.shard_id for lease in stuck[:_POSITIONS_MOST])
    nobody = f"leases: {len(stuck)} open shards are finished in the table, so no worker reads them: {names}"
    return [(True, told), (False, f"{nobody}; read them again with `kcl-daemon leases reset --shard`")]


async def _refused(lease: Lease, stream: StreamRef, kinesis: Kinesis) -> Finding | None:
    """What is wrong with the checkpoint of a lease; None: Kinesis takes it."""
    start = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, str(lease.checkpoint.sequence_number))
    try:
        await kinesis.get_shard_iterator(stream, lease.shard_id, start)
    except AwsError as error:
        advice = _ANOTHER if isinstance(error, InvalidRequest) else advice_for(error)
        told = f"leases: Kinesis refuses the checkpoint of {lease.shard_id}: {error}; {advice}"
        return False, masked(on_one_line(told))
    return None


async def _polling(stream: StreamRef, shard: Shard, kinesis: Kinesis) -> list[Finding]:
    findings: list[Finding] = []
    shard_id, newest = shard.shard_id, ReadFrom(IteratorKind.LATEST)
    iterator = await tried(
        findings, "GetShardIterator", lambda: kinesis.get_shard_iterator(stream, shard_id, newest)
    )
    if iterator is not None:
        read = partial(kinesis.get_records, stream, shard_id, iterator, 1)
        if await tried(findings, "GetRecords", read) is not None:
            findings.append((True, "GetRecords: allowed"))
    return findings


async def _fan_out(settings: Settings, stream_arn: str, consumers: Consumers) -> list[Finding]:
    """What can be told of the consumer; who has one can be sure of little more than that it is there."""
    findings: list[Finding] = []
    given = settings.fan_out.consumer_arn
    name = settings.fan_out.consumer_name or settings.application_name
    asked = ConsumerName(stream_arn, name) if given is None else given
    found = await tried(findings, f"consumer {given or name}", lambda: consumers.describe_consumer(asked))
    if not findings:
        findings += _consumer(found, given or name, registers=given is None)
    return [*findings, not_tried(_SUBSCRIBE, _A_SUBSCRIPTION)]


def _consumer(found: Consumer | None, called: str, *, registers: bool) -> list[Finding]:
    is_there = found is not None and found.status is not ConsumerStatus.DELETING
    told = "does not exist" if found is None else found.status.value
    if is_there:
        return [(True, f"consumer {called}: {told}")]
    if not registers:
        return [(False, f"consumer {called}: {told}; correct or remove fanoutConfig.consumerArn")]
    return [
        (True, f"consumer {called}: {told}; the daemon registers it"),
        not_tried(_REGISTER, _A_CONSUMER),
    ]
