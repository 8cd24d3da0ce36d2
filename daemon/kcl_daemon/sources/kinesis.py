"""Streams of Kinesis, polled or pushed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.source import MakeArn, Opening, Right, Source

if TYPE_CHECKING:
    from kcl_daemon.config.settings import Settings
    from kcl_daemon.ports import Kinesis

_POLLING: Final = ("GetShardIterator", "GetRecords")


class KinesisStreams(Source):
    @asynccontextmanager
    async def opened(self, opening: Opening) -> AsyncGenerator[Kinesis, None]:
        from kcl_daemon.transport.kinesis import HttpKinesis

        yield HttpKinesis(opening.kinesis)

    def rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        if settings.streams.name_filter is not None:
            yield "ListStreams", "kinesis", ("ListStreams",), ["*"]
        if not (streams := self.arns(settings, arn)):
            return
        fan_out = settings.fan_out if settings.retrieval.mode is RetrievalMode.FANOUT else None
        # A relay is told that a quiet shard is complete, by a read.
        polls = fan_out is None or fan_out.fallback_to_polling or settings.bundled is not None
        registers = fan_out is not None and fan_out.consumer_arn is None
        actions = (*(self.describes, self.lists), *(_POLLING if polls else ()))
        yield (
            "ReadStream",
            "kinesis",
            (*actions, *(("RegisterStreamConsumer",) if registers else ())),
            streams,
        )
        if fan_out is not None:
            given, name = fan_out.consumer_arn, fan_out.consumer_name or settings.application_name
            consumers = [f"{stream}/consumer/{name}:*" for stream in streams] if given is None else [given]
            # A consumer given by name is found through its stream.
            described = [*streams, *consumers] if registers else consumers
            yield "FindConsumer", "kinesis", ("DescribeStreamConsumer",), described
            yield "Subscribe", "kinesis", ("SubscribeToShard",), consumers

    def peek_rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        if streams := self.arns(settings, arn):
            yield "Peek", "kinesis", _POLLING, streams

    def arns(self, settings: Settings, arn: MakeArn) -> list[str]:
        named, given = super().arns(settings, arn), settings.streams.name_filter
        return named if given is None else [*named, arn("kinesis", f"stream/{given}")]
