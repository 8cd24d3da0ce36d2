"""The functions of Lambda that read a stream, as the SDK's client answers."""

from __future__ import annotations

import boto3
import pytest
from botocore.stub import Stubber

from kcl_daemon.aws.lookups import functions_that_read
from kcl_daemon.aws.session import Services
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AccessDenied
from tests.unit.fleet.changed_table import arn_of


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    client = boto3.client("lambda", "eu-west-1", aws_access_key_id="a", aws_secret_access_key="b")
    monkeypatch.setattr(Services, "client_for", lambda *_args, **_kwargs: client)
    stub = Stubber(client)
    stub.activate()
    return stub


def test_functions_that_are_switched_off_do_not_read(service: Stubber) -> None:
    prefix = "arn:aws:lambda:eu-west-1:111122223333:function"
    found = [
        {"FunctionArn": f"{prefix}:index", "State": "Enabled"},
        {"FunctionArn": f"{prefix}:old", "State": "Disabled"},
        {"FunctionArn": f"{prefix}:audit:live", "State": "Creating"},
    ]
    answer = {"EventSourceMappings": found}
    service.add_response("list_event_source_mappings", answer, {"EventSourceArn": arn_of(1)})
    assert functions_that_read(arn_of(1), Endpoints()) == ["index", "audit:live"]


def test_a_denied_list_of_event_source_mappings_is_access_denied(service: Stubber) -> None:
    service.add_client_error("list_event_source_mappings", "AccessDeniedException")
    with pytest.raises(AccessDenied, match="ListEventSourceMappings"):
        functions_that_read(arn_of(1), Endpoints())
