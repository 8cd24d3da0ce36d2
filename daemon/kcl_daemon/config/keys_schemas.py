"""The properties of schemas. Pure data, part of the table in `keys`; where Glue is, is in `keys_services`."""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.key import Key
from kcl_daemon.config.kinds import choice
from kcl_daemon.config.schema_settings import SchemaFailure, SchemaRegistry

SCHEMA_REGISTRY: Final = Key(
    "schemaRegistry",
    choice({each.value: each for each in SchemaRegistry}),
    "schemas.registry",
    "`DECODE`: records that begin with the header of the AWS Glue Schema Registry get the fields `schemaName`, "
    "`schemaVersionId`, `schemaDataFormat` and `schemaDefinition`, and their data comes without header, "
    "uncompressed. See [Schemas](schema-registry.md).",
    extension=True,
)
SCHEMA_FAILURE: Final = Key(
    "schemaRegistryFailure",
    choice({each.value: each for each in SchemaFailure}),
    "schemas.on_failure",
    "What becomes of a record whose schema the registry does not know, or that cannot be unpacked. `RETRY`: its shard "
    "waits and asks again, with warnings. `PASSTHROUGH`: it is delivered as it came, header and all.",
    extension=True,
)
SCHEMA_KEYS: Final[tuple[Key, ...]] = (SCHEMA_REGISTRY, SCHEMA_FAILURE)
