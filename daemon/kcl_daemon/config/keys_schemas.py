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
    "`DECODE`: records with the header of the AWS Glue Schema Registry get the fields `schemaName`, "
    "`schemaVersionId`, `schemaDataFormat` and `schemaDefinition`; their data comes uncompressed and "
    "without the header. See [Schemas](schema-registry.md).",
    extension=True,
)
SCHEMA_FAILURE: Final = Key(
    "schemaRegistryFailure",
    choice({each.value: each for each in SchemaFailure}),
    "schemas.on_failure",
    "What happens to a record whose schema is not in the registry, or that cannot be unpacked. `RETRY`: "
    "the shard waits and the daemon tries again, with warnings. `PASSTHROUGH`: the record is delivered "
    "unchanged, with its header.",
    extension=True,
)
SCHEMA_KEYS: Final[tuple[Key, ...]] = (SCHEMA_REGISTRY, SCHEMA_FAILURE)
