"""The Glue Schema Registry over botocore's client: one call. Knows nothing of records and keeps nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kcl_daemon.aws.calls import Lane
from kcl_daemon.aws.shapes import understanding
from kcl_daemon.ports_schemas import Schema

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient


class GlueSchemas:
    """The port `Schemas`.

    Args:
        client: an ordinary one.
        lane: for all calls.
    """

    def __init__(self, client: GlueClient, lane: Lane) -> None:
        self._client = client
        self._lane = lane

    async def schema(self, version_id: str) -> Schema:
        """As the port says."""
        call = partial(self._client.get_schema_version, SchemaVersionId=version_id)
        answer = await self._lane.run("GetSchemaVersion", call)
        with understanding("GetSchemaVersion"):
            # arn:aws:glue:REGION:ACCOUNT:schema/REGISTRY/NAME
            name = answer["SchemaArn"].rpartition("/")[2]
            return Schema(version_id, name, answer["DataFormat"], answer["SchemaDefinition"])
