from __future__ import annotations

import shlex
from base64 import b64decode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kcl_daemon.cli.common import aligned
from kcl_daemon.cli.letters.replay import Receipts
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadPlace, Outcome, StoredLetter
from kcl_daemon.text import numbered, on_one_line, size

_TEXT_CHARACTERS: Final = 2_000
_HEX_BYTES: Final = 256
_HEX_WIDTH: Final = 16


def time_text(epoch_ms: int | None) -> str:
    if not epoch_ms:
        return "-"
    try:
        return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(epoch_ms)


def counts(letters: Sequence[StoredLetter]) -> list[dict[str, Any]]:
    found: dict[tuple[str, ...], list[StoredLetter]] = {}
    for each in letters:
        letter = each.letter
        group = (letter.cause.value, letter.application_name, letter.stream_name, letter.shard_id)
        found.setdefault(group, []).append(each)
    return [
        {
            **dict(zip(("cause", "application", "stream", "shard"), group, strict=True)),
            "letters": len(few),
            "bytes": sum(each.data_bytes for each in few),
            "firstArrival": min(each.arrival_ms for each in few),
            "lastArrival": max(each.arrival_ms for each in few),
        }
        for group, few in sorted(found.items())
    ]


def list_lines(source: str, letters: Sequence[StoredLetter], limit: int) -> Iterator[str]:
    total = size(sum(each.data_bytes for each in letters))
    yield f"{numbered(len(letters), 'letter')}, {total}, in {on_one_line(source)}"
    if not letters:
        return
    yield ""
    yield from aligned(
        ("cause", "application", "stream", "shard", "letters", "size", "first arrival"),
        [
            (*(each[name] for name in ("cause", "application", "stream", "shard")), str(each["letters"]),
             size(each["bytes"]), time_text(each["firstArrival"]))
            for each in counts(letters)
        ],
        {4, 5},
    )  # fmt: skip
    yield ""
    yield from aligned(
        ("key", "arrival", "cause", "size", "error"),
        [
            (each.letter.key, time_text(each.arrival_ms), each.letter.cause.value, size(each.data_bytes),
             each.letter.error[:100])
            for each in letters[:limit]
        ],
        {3},
    )  # fmt: skip
    if len(letters) > limit:
        yield f"{len(letters) - limit} more; --limit {len(letters)} shows all"


def list_json(
    source: str, letters: Sequence[StoredLetter], bad: Sequence[BadPlace], limit: int
) -> dict[str, object]:
    return {
        "source": source,
        "counts": counts(letters),
        "letters": [_fields(each) for each in letters[:limit]],
        "malformed": [{"place": each.place, "why": each.why} for each in bad],
    }


def _fields(stored: StoredLetter) -> dict[str, object]:
    letter, record = stored.letter, stored.letter.record
    return {
        "key": letter.key,
        "name": stored.name,
        "place": stored.place,
        "application": letter.application_name,
        "stream": letter.stream_name,
        "shard": letter.shard_id,
        "sequenceNumber": record.sequence_number,
        "subSequenceNumber": record.sub_sequence_number,
        "partitionKey": record.partition_key,
        "arrival": record.approximate_arrival_timestamp,
        "setAside": letter.set_aside_ms,
        "worker": letter.worker_id,
        "cause": letter.cause.value,
        "failures": letter.failures,
        "error": letter.error,
        "bytes": stored.data_bytes,
    }


def show_lines(stored: StoredLetter, letter: DeadLetter, source: str) -> Iterator[str]:
    facts = _fields(stored) | {
        "error": letter.error,
        "arrival": time_text(stored.arrival_ms),
        "setAside": time_text(letter.set_aside_ms),
        "schema": None if letter.record.schema is None else letter.record.schema.name,
    }
    for name, value in facts.items():
        if value is not None and value != "":
            yield f"{name:<18}{on_one_line(str(value))}"
    yield "data"
    yield from (f"  {line}" for line in data_lines(b64decode(letter.record.data)))
    if letter.stderr:
        yield "stderr"
        yield from (f"  {on_one_line(line)}" for line in letter.stderr)
    command = f"kcl-daemon letters replay {shlex.quote(source)} --key {letter.key} -- PROGRAM"
    yield f"to replay it: {on_one_line(command)}"


def data_lines(data: bytes) -> Iterator[str]:
    try:
        text: str | None = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and text.replace("\n", "").replace("\t", "").isprintable():
        yield from text[:_TEXT_CHARACTERS].split("\n")
        shown = len(text[:_TEXT_CHARACTERS].encode())
    else:
        shown = min(len(data), _HEX_BYTES)
        for start in range(0, shown, _HEX_WIDTH):
            few = data[start : min(start + _HEX_WIDTH, shown)]
            readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in few)
            yield f"{few.hex(' '):<{3 * _HEX_WIDTH}} {readable}"
    if shown < len(data):
        yield f"... {len(data) - shown} more bytes; --raw writes all"


def replay_lines(
    letters: Sequence[StoredLetter], receipts: Receipts, bad: Sequence[BadPlace]
) -> Iterator[str]:
    found = {each.name: receipts.now.get(each.name) for each in letters}
    for each in letters:
        receipt = found[each.name]
        if receipt is not None and receipt.outcome is not Outcome.DONE:
            yield on_one_line(f"{receipt.outcome.value} {each.letter.key}: {receipt.reason}")
    by_outcome = [
        f"{sum(each is not None and each.outcome is outcome for each in found.values())} {outcome.value}"
        for outcome in Outcome
    ]
    left = sum(each is None for each in found.values())
    where = "" if receipts.path is None else f"; receipts: {on_one_line(str(receipts.path))}"
    yield f"{numbered(len(letters), 'letter')}: {', '.join(by_outcome)}, {left} left{where}"
    if bad:
        yield f"{numbered(len(bad), 'place')} skipped, see above"
