"""Asks Kinesis whether a daemon could read a stream, by polling or by enhanced fan-out. Changes nothing.

Owns which calls are tried and what is said about them.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from kcl_daemon.cli.findings import Finding, not_tried, tried
from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.ports import IteratorKind, Kinesis, ReadFrom, StreamRef
from kcl_daemon.ports_fan_out import Consumer, ConsumerName, ConsumerStatus
from kcl_daemon.shards.shard import Shard

_REGISTER: Final = "RegisterStreamConsumer"
_A_CONSUMER: Final = "a try would leave a consumer there, which Amazon charges for"
_SUBSCRIBE: Final = "SubscribeToShard"
_A_SUBSCRIPTION: Final = "a try would take the shard from the worker that reads it"


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
    told = "not there" if found is None else found.status.value
    if is_there:
        return [(True, f"consumer {called}: {told}")]
    if not registers:
        return [(False, f"consumer {called}: {told}; put fanoutConfig.consumerArn right, or take it out")]
    return [
        (True, f"consumer {called}: {told}; the daemon registers it"),
        not_tried(_REGISTER, _A_CONSUMER),
    ]
