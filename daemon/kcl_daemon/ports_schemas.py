"""The port of schema registries: what the daemon wants to know of a schema. Beside `ports`, as fan-out is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of a schema; never altered once it is registered.

    Args:
        version_id: of the version, a UUID in lower case.
        name: of the schema.
        data_format: `AVRO`, `JSON` or `PROTOBUF`.
        definition: its text.
    """

    version_id: str
    name: str
    data_format: str
    definition: str


class Schemas(Protocol):
    """A schema registry."""

    async def schema(self, version_id: str) -> Schema:
        """A version, asked for anew each time. Cancelled: nothing has happened.

        Raises:
            SchemaNotFound: there is no such version.
            AwsError: the registry did not tell.
        """
        ...
