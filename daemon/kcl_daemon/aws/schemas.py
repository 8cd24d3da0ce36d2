"""The Glue Schema Registry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kcl_daemon.aws.calls import CallLimiter
from kcl_daemon.ports import Schema
from kcl_daemon.transport.service_answers import parsing_answer

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient


class GlueSchemas:
    def __init__(self, client: GlueClient, limiter: CallLimiter) -> None:
        self._client = client
        self._limiter = limiter

    async def schema(self, version_id: str) -> Schema:
        call = partial(self._client.get_schema_version, SchemaVersionId=version_id)
        answer = await self._limiter.run("GetSchemaVersion", call)
        with parsing_answer("GetSchemaVersion"):
            # arn:aws:glue:REGION:ACCOUNT:schema/REGISTRY/NAME
            name = answer["SchemaArn"].rpartition("/")[2]
            return Schema(version_id, name, answer["DataFormat"], answer["SchemaDefinition"])
