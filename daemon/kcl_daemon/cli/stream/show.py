from __future__ import annotations

from typing import Any, Final

import click

from kcl_daemon.cli.common import json_text
from kcl_daemon.cli.letters.show import time_text
from kcl_daemon.records.content import SeenRecord, fields_of
from kcl_daemon.text import on_one_line, short_shard, size

TERMINAL_CHARACTERS: Final = 4_000
_HEX_BYTES: Final = 32
_COLOURS: Final = ("green", "yellow", "blue", "magenta", "cyan", "bright_red")


def json_fields(seen: SeenRecord) -> dict[str, Any]:
    schema = seen.schema
    return {
        "shard": seen.shard_id,
        "sequenceNumber": seen.sequence_number,
        "subSequenceNumber": seen.sub_sequence_number,
        "partitionKey": seen.partition_key,
        "arrival": None if seen.arrival_ms is None else utc(seen.arrival_ms),
        **({} if seen.compression is None else {"compression": seen.compression}),
        **(
            {}
            if schema is None
            else {
                "schema": {
                    "name": schema.name,
                    "versionId": schema.version_id,
                    "dataFormat": schema.data_format,
                }
            }
        ),
        **fields_of(seen.data),
    }


def json_line(seen: SeenRecord) -> str:
    return json_text(json_fields(seen), on_one_line=True)


def utc(epoch_ms: int | None) -> str:
    return time_text(epoch_ms).replace("+00:00", "Z")


def text_line(seen: SeenRecord, *, long: bool, most: int | None) -> str:
    shard = short_shard(seen.shard_id)
    colour = _COLOURS[sum(seen.shard_id.encode()) % len(_COLOURS)]
    words = [
        click.style(utc(seen.arrival_ms), dim=True),
        click.style(f"{shard:>3}", fg=colour),
        click.style("(no key)", dim=True)
        if seen.partition_key is None
        else click.style(on_one_line(seen.partition_key), fg="cyan"),
    ]
    if long:
        words.insert(2, click.style(f"{seen.sequence_number}/{seen.sub_sequence_number}", dim=True))
        if seen.schema is not None:
            words.append(click.style(on_one_line(f"[{seen.schema.name}]"), dim=True))
    return "  ".join((*words, data_text(seen.data, most)))


def data_text(data: bytes, most: int | None) -> str:
    """Control characters as escapes; what is no text by its first bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        more = " ..." if len(data) > _HEX_BYTES else ""
        return f"(no text, {size(len(data))}: {data[:_HEX_BYTES].hex(' ')}{more})"
    if most is not None and len(text) > most:
        return f"{on_one_line(text[:most])}... ({len(text)} characters; all of them with --json)"
    return on_one_line(text)
