"""Who else reads the stream of a DynamoDB table, as far as AWS tells it."""

from __future__ import annotations

from typing import Any, Final

from kcl_daemon.aws.calls import SDK_ERRORS, translated
from kcl_daemon.aws.session import Services
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AwsError

_OFF: Final = frozenset({"Disabled", "Disabling", "Deleting"})


def functions_that_read(stream_arn: str, endpoints: Endpoints) -> list[str]:
    """Names of functions of Lambda. Blocks; raises ConfigurationError and AwsError."""
    try:
        client: Any = Services(endpoints).client_for("lambda", region_name=None, address=None)
        try:
            pages = client.get_paginator("list_event_source_mappings").paginate(EventSourceArn=stream_arn)
            found = [each for page in pages for each in page["EventSourceMappings"]]
        finally:
            client.close()
    except SDK_ERRORS as error:
        raise translated(error, operation="ListEventSourceMappings", not_found=AwsError) from error
    return [str(each["FunctionArn"]).split(":function:")[-1] for each in found if each["State"] not in _OFF]
