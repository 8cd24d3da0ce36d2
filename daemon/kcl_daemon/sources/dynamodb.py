"""Streams of DynamoDB tables: perhaps a scan of the table first, then one stream after another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.source import MakeArn, Opening, Right, Source
from kcl_daemon.text import NOT_TRIED

if TYPE_CHECKING:
    from kcl_daemon.config.settings import Settings
    from kcl_daemon.ports import Changes, Kinesis, StreamRef, StreamSummary


class TableStreams(Source):
    """An ARN never means another stream. The service does not tell of the tip, nor of hash keys."""

    service = "dynamodb"
    metered_as = "dynamodbstreams"
    endpoint = "dynamodb_streams"
    describes = lists = "DescribeStream"
    says_tip = False
    limits_bytes = False  # but reads
    arrival_step_ms = 1_000
    stops_at_loss = True
    is_replaceable = False
    has_hash_keys = False
    has_fan_out = False
    has_tables = True

    @asynccontextmanager
    async def opened(self, opening: Opening) -> AsyncGenerator[Kinesis, None]:
        from kcl_daemon.aws.access import AwsAccess, open_client
        from kcl_daemon.transport.dynamodb_streams import CHANGES_API, HttpDynamoStreams
        from kcl_daemon.transport.snapshots import SnapshotSegments
        from kcl_daemon.transport.table_streams import FollowedTables

        service, clock = opening.clients.of_changes, opening.clock
        assert service is not None, "the clients were opened for them"
        access = AwsAccess(service, opening.clients.limiters.kinesis)
        ca_bundle = opening.clients.ca_bundle
        async with open_client(
            access, CHANGES_API, clock, ca_bundle=ca_bundle, on_date=opening.on_date
        ) as client:
            form, units = opening.settings.changes.form, opening.settings.changes.read_units
            changes: Changes = FollowedTables(HttpDynamoStreams(client, form, clock))
            if opening.scan is not None and opening.log is not None:
                changes = SnapshotSegments(
                    changes, opening.scan, form=form, read_units=units, clock=clock, log=opening.log
                )
            yield changes

    def gone(self, stream: StreamRef) -> str:
        also = "" if stream.table else ", and name the new one, or the table in tableName.source"
        return f"it was switched off a day ago; switch it on again{also}"

    def path(self, stream: StreamRef) -> str:
        """By pattern: a table gets new ones."""
        return f"table/{stream.table}/stream/*"

    def rights(self, settings: Settings, arn: MakeArn) -> Iterator[Right]:
        if arns := self.arns(settings, arn):
            yield "ReadChanges", "dynamodb", ("DescribeStream", "GetShardIterator", "GetRecords"), arns
        if followed := [each for each in arns if each.endswith("/stream/*")]:
            yield "FindStreams", "dynamodb", ("ListStreams",), followed

    def findings(self, settings: Settings, summary: StreamSummary) -> Iterator[tuple[bool, str]]:
        off = ", it was switched off: it is read to its end" if summary.status == "DISABLED" else ""
        yield True, f"stream {summary.arn}: {summary.status}, {summary.view_type}{off}"
        if (why := settings.changes.lacking(summary)) is not None:
            yield not settings.changes.snapshot, f"images: warning: {why}"
        from kcl_daemon.aws.lookups import functions_that_read  # asks Lambda

        what, hidden = "other readers", "other applications, such as KCL workers, cannot be seen"
        whose = f"{what}: functions of Lambda{NOT_TRIED}"
        if settings.endpoints.dynamodb_streams is not None:
            yield True, f"{whose}the endpoint is our own; {hidden}"
            return
        try:
            names = functions_that_read(summary.arn, settings.endpoints)
        except (AwsError, ConfigurationError) as error:
            told = f"{type(error).__name__}: {error}"
            yield True, f"{whose}lambda:ListEventSourceMappings did not answer: {told}; {hidden}"
        else:
            yield True, f"{what}: {_readers(names)}; {hidden}"


def _readers(functions: Sequence[str]) -> str:
    """The service recommends two readers of a shard at most."""
    if not functions:
        return "no function of Lambda"
    said = f"warning: {', '.join(functions)} of Lambda; with this daemon {len(functions) + 1} readers of each shard"
    return f"{said}, two at most are recommended" + (
        ", and reads are throttled" if len(functions) > 1 else ""
    )
