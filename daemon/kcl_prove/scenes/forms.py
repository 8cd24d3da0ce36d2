from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from botocore.exceptions import ClientError

from kcl_local.demo.stream import in_thread
from kcl_prove.parts import Options, ProveError
from kcl_prove.scenes.traffic import Play
from kcl_prove.stage import Stage

SCHEMA: Final = "record"
_DEFINITION: Final = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
_UNCOMPRESSED: Final = b"\x03\x00"
_SCALE_AT: Final = 0.25


def called(play: Play, operation: str) -> int:
    return sum(count for (name, _), count in play.fleet.calls.items() if name == operation)


async def was_polled(play: Play) -> None:
    if not called(play, "kinesis:GetRecords"):
        play.missed.append("no GetRecords was counted, so nothing was polled")


async def was_pushed(play: Play) -> None:
    if not called(play, "kinesis:SubscribeToShard") or called(play, "kinesis:GetRecords"):
        play.missed.append("records did not come by SubscribeToShard alone")


async def has_one_table(play: Play) -> None:
    tables = play.stage.client("dynamodb")
    for suffix in ("-CoordinatorState", "-WorkerMetricStats"):
        name = play.fleet.application.name + suffix
        try:
            await in_thread(tables.describe_table, TableName=name)
            play.missed.append(f"table {name} exists, although the layout is single")
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "ResourceNotFoundException":
                raise


def no_glue(options: Options) -> str:
    return (
        "there is no local endpoint of Glue" if options.is_local and "glue" not in options.endpoints else ""
    )


def header(version_id: str) -> bytes:
    return _UNCOMPRESSED + UUID(version_id).bytes


async def with_schema(stage: Stage) -> tuple[Callable[[bytes], bytes], str]:
    """Records get a header, children should hear its schema's name."""
    glue, name = stage.client("glue"), f"{stage.run_id}-glue"
    await stage.remember("schema registry", name)
    try:
        await in_thread(glue.create_registry, RegistryName=name, Tags=dict(stage.tags))
        made: dict[str, Any] = await in_thread(
            glue.create_schema,
            RegistryId={"RegistryName": name},
            SchemaName=SCHEMA,
            DataFormat="JSON",
            Compatibility="NONE",
            SchemaDefinition=_DEFINITION,
        )
    except ClientError as error:
        raise ProveError(f"the schema could not be registered: {error}") from error
    before = header(made["SchemaVersionId"])
    return lambda data: before + data, SCHEMA


async def scale_up(play: Play) -> None:
    """An on-demand stream takes no reshard: it becomes provisioned, gets twice the shards, and is on demand again."""
    kinesis, name = play.stage.client("kinesis"), play.stream.name
    summary = await in_thread(kinesis.describe_stream_summary, StreamName=name)
    arn: str = summary["StreamDescriptionSummary"]["StreamARN"]
    before = await open_shards(play)

    async def change(operation: Callable[..., Any], **arguments: Any) -> None:
        await in_thread(operation, StreamARN=arn, **arguments)
        await play.stream.active()

    await play.at(_SCALE_AT)
    await change(kinesis.update_stream_mode, StreamModeDetails={"StreamMode": "PROVISIONED"})
    await change(kinesis.update_shard_count, TargetShardCount=2 * before, ScalingType="UNIFORM_SCALING")
    await change(kinesis.update_stream_mode, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    after = await open_shards(play)
    play.notes.append(
        f"scaled from {before} to {after} shards by a detour over provisioned mode; that the service scales by load is "
        "left out: it needs megabytes a second for many minutes"
    )
    if after <= before:
        play.missed.append(f"the stream still has {after} open shards")


async def open_shards(play: Play) -> int:
    return sum(shard.is_open for shard in await play.stream.shards())
