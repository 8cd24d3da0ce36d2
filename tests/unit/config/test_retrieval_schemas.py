"""The properties of schemas: what they mean, and what has no effect without a registry."""

from __future__ import annotations

import pytest

from kcl_daemon.config.retrieval import SchemaFailure, SchemaRegistry, SchemaSettings
from kcl_daemon.config.services import CredentialsSource
from kcl_daemon.errors import ConfigurationError
from tests.unit.config.helpers import read

ROLE = "StsAssumeRoleCredentialsProvider|arn:aws:iam::111122223333:role/reader|kcl"


def test_schemas_are_not_resolved_unless_a_property_asks_for_it() -> None:
    assert read().settings.schemas == SchemaSettings(SchemaRegistry.OFF, SchemaFailure.RETRY)
    assert not read("schemaRegistry = off\n").settings.schemas.are_resolved
    assert read("schemaRegistry = decode\n").settings.schemas.are_resolved


def test_where_and_as_whom_glue_is_asked_can_differ() -> None:
    loaded = read(
        "schemaRegistry = DECODE\nschemaRegistryFailure = PassThrough\nglueClient.region = us-west-2\n"
        f"glueClient.endpointOverride = http://127.0.0.1:1\nAwsCredentialsProviderGlue = {ROLE}\n"
    )
    endpoints = loaded.settings.endpoints
    assert loaded.settings.schemas.on_failure is SchemaFailure.PASSTHROUGH
    assert (endpoints.of_glue.region_name, endpoints.glue) == ("us-west-2", "http://127.0.0.1:1")
    assert [each.source for each in endpoints.credentials.glue] == [CredentialsSource.ROLE]
    assert not loaded.warnings


@pytest.mark.parametrize(
    "line",
    [
        "schemaRegistryFailure = retry",
        "glueClient.region = us-west-2",
        f"AwsCredentialsProviderGlue = {ROLE}",
    ],
)
def test_a_property_of_a_registry_that_nobody_asks_has_no_effect(line: str) -> None:
    (notice,) = read(f"{line}\n").warnings
    assert (notice.event, notice.key) == ("property_has_no_effect", line.partition(" ")[0])


@pytest.mark.parametrize(
    "line", ["schemaRegistry = true", "schemaRegistryFailure = skip", "glueClient.defaultsMode = auto"]
)
def test_other_words_are_refused(line: str) -> None:
    with pytest.raises(ConfigurationError, match=line.partition(" ")[0]):
        read(f"{line}\n")
