"""What few daemons ask: the Glue Schema Registry, and Lambda."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kcl_daemon.aws.access import CallLimiter
from kcl_daemon.aws.session import ask
from kcl_daemon.config.services import Endpoints
from kcl_daemon.ports import Schema
from kcl_daemon.transport.service_answers import parsing_answer

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient

_OFF: Final = frozenset({"Disabled", "Disabling", "Deleting"})


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


def functions_that_read(stream_arn: str, endpoints: Endpoints) -> list[str]:
    """Blocks; raises ConfigurationError and AwsError."""

    def call(client: Any) -> list[Any]:
        pages = client.get_paginator("list_event_source_mappings").paginate(EventSourceArn=stream_arn)
        return [each for page in pages for each in page["EventSourceMappings"]]

    found = ask(endpoints, "lambda", "ListEventSourceMappings", call)
    return [str(each["FunctionArn"]).split(":function:")[-1] for each in found if each["State"] not in _OFF]
