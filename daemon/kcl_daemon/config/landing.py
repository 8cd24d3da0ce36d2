from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import (
    SOMETHING,
    Form,
    InvalidValue,
    ValueKind,
    choice,
    endpoint,
    name,
    not_blank,
    ours,
    whole_number,
)

_BUCKET: Final = re.compile(r"s3[an]?://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[!-~]*))?")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+://?\S+")
_ENCRYPTION: Final = name(
    r"AES256|aws:kms|arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+",
    "AES256, aws:kms or the ARN of a KMS key",
)
_BY_THE_LANDER: Final = "the bundled lander has the records, no program of yours; remove this line"
_SEGMENTS: Final = "segments are cut by landingWindowMillis and landingMaxBytes; remove this line"
_REFUSED: Final[Mapping[str, str]] = {
    "executableName": "the bundled lander writes the records, and no program of yours runs; keep this line or landing",
    "childUser": "the lander listens only to the daemon's own user; remove this line",
    "childPreload": "there is no program to load in advance; remove this line",
    "childProtocol": _BY_THE_LANDER,
    "shardConcurrency": "a shard has one log, in order; remove this line",
    "deadLetterDestination": _BY_THE_LANDER,
    "poisonRecordPolicy": _BY_THE_LANDER,
    "maxRecordAgeMillis": "every record is written, of any age; remove this line",
    "schemaRegistry": "records are kept as they are, and decoded where they are read; remove this line",
    **dict.fromkeys(("batchWindowMillis", "batchMaxRecords", "batchMaxBytes"), _SEGMENTS),
}
_DEFAULTS: Final = frozenset({"RETRY", "CURRENT", "OFF"})


def _uri(text: str) -> str:
    place = not_blank(text)
    if place.startswith(("s3:", "s3a:", "s3n:")) and (
        not _BUCKET.fullmatch(place) or "?" in place or "#" in place
    ):
        raise InvalidValue("not a bucket and a prefix")
    if "\0" in place or ("://" in place and not _SCHEME.fullmatch(place)):
        raise InvalidValue("neither a folder nor a URI")
    return place


_PLACE: Final = ValueKind(_uri, "a folder, or a URI such as s3://BUCKET/PREFIX", form=Form(SOMETHING))


@dataclass(frozen=True, slots=True)
class LandingSettings:
    """The lander's options have the same names."""

    uri: str | None = ours("landing", _PLACE, None)
    """Where the records of all shards are written, for any reader: a folder, or a URI such as `s3://BUCKET/PREFIX`.
    Replaces `executableName`. See [Landing log](landing.md)."""
    window_ms: int = ours("landingWindowMillis", whole_number(1, 3_600_000, "milliseconds"), 5_000)
    """The records of one segment arrived within this time, and wait no longer for it to be written."""
    max_bytes: int = ours("landingMaxBytes", whole_number(1024, 1024**3, "bytes"), 64 * 1024**2)
    """Maximum size of the records in one segment, before compression."""
    layout: str = ours("landingLayout", choice({"LOG": "log", "DATED": "dated"}), "log")
    """Folders of the segments: `log` by shard, `dated` by hour of arrival, as tables of Athena, DuckDB and Spark have
    them. Fixed when the log is created."""
    format: str = ours("landingFormat", choice({"PARQUET": "parquet", "ARROW": "arrow"}), "parquet")
    """Format of the segments: Parquet with zstd, or Arrow IPC files. Fixed when the log is created."""
    processes: int = ours("landingProcesses", whole_number(1, 64, "processes"), 1)
    """How many processes write, where one CPU core is not enough."""
    memory_bytes: int = ours("landingMemoryBytes", whole_number(1024**2, 2**40, "bytes"), 256 * 1024**2)
    """How many bytes of records one process holds in memory. While it has as many, no more are taken."""
    endpoint: str | None = ours("landingEndpoint", endpoint(), None, shown="that of AWS")
    """Endpoint of an S3 store that is not AWS."""

    encryption: str | None = ours(
        "landingEncryption", _ENCRYPTION, None, shown="as the bucket does by itself"
    )
    """Encryption that each PUT to S3 asks for: `AES256`, `aws:kms` (with AWS's key), or the ARN of a KMS key."""

    @property
    def bucket_and_prefix(self) -> tuple[str, str] | None:
        found = _BUCKET.fullmatch(self.uri or "")
        if found is None:
            return None
        prefix = (found["prefix"] or "").strip("/")
        return found["bucket"], f"{prefix}/" if prefix else ""


def refused(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, reason in _REFUSED.items():
        value = values.get(key, False)
        is_default = value is False or getattr(value, "name", "") in _DEFAULTS
        if not is_default and getattr(value, "most", 2) > 1:
            yield key, f"with landing {reason}"
    if "landingEncryption" in values and not _BUCKET.fullmatch(str(values.get("landing"))):
        yield "landingEncryption", "only S3 encrypts by header: use s3://BUCKET/PREFIX, or remove this line"
    usual = LandingSettings()
    most = values.get("landingMaxBytes", usual.max_bytes)
    memory = values.get("landingMemoryBytes", usual.memory_bytes)
    if isinstance(most, int) and isinstance(memory, int) and most > memory:
        wrong = "landingMemoryBytes" if "landingMemoryBytes" in values else "landingMaxBytes"
        yield (
            wrong,
            f"one segment (landingMaxBytes, {most} bytes) must fit into landingMemoryBytes ({memory})",
        )
