"""Text for people: masks and escapes text from outside, and puts figures into words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from kcl_daemon.shards.lineage import segment_of

MASK: Final = "***"
NOT_TRIED: Final = ": NOT TRIED, as "
SHOWN_CHARACTERS: Final = 200
MASKED_CHARACTERS: Final = 64 * 1024
"""Longer text is cut before masking, to limit the time."""

# `token` alone is left out: concurrency tokens and page tokens are no secrets.
_SECRET_NAME = re.compile(
    r"secret|passw|credential(?!s?_?provider)|authorization|private_?key|access_?key|(session|security|admin)_?token(?!_?file)",
    re.IGNORECASE,
)
# Each pattern is linear in time for any text, because they run on the event loop: words match only from
# their start, and `++` prevents rereading.
_ACCESS_KEY_ID = re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}+\b")
_ASSIGNED = re.compile(
    r"(?i)((?<![\w.-])"
    r"(?=[\w.-]*?(?:secret|passw(?:or)?d|session_?token|security-?token|admin_?token(?!_?file)|access_?key|x-amz-signature))"
    r"[\w.-]++[\"']?\s*+[=:]\s*+[\"']?)[^\s\"'&,;]++"
)
# In the parameters of an address (`sc://HOST/;token=...`) bare `token` and `sig` are secret.
_PARAMETER = re.compile(
    r"(?i)([;?&](?:(?:(?:access|auth|bearer|id|refresh)[_-]?)?(?:token|api[_-]?key)|sig)=)[^\s\"'&;]+"
)
_ASSIGNED_HINT = re.compile(r"(?i)secret|passw|token|(?:access|api)[_-]?key|x-amz-signature|[;?&]sig=")
_URL_USER = re.compile(r"(://)[^/\s@]++@")
_CUT_URL_USER = re.compile(r"(://)[^/\s@]++\Z")
_SIGNATURE = re.compile(r"(AWS4-HMAC-SHA256)\s.*")
# A secret access key has no other mark, so only text that is nothing else counts.
_SECRET_KEY_CHARACTERS: Final = 40
_SECRET_KEY = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9+=][A-Za-z0-9/+=]{39}")


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def masked(text: str) -> str:
    """Text beyond `MASKED_CHARACTERS` is cut, with a note. Linear time."""
    if len(text) <= MASKED_CHARACTERS:
        return _masked(text)
    begins = _CUT_URL_USER.sub(rf"\1{MASK}", text[:MASKED_CHARACTERS])  # its @ may come after the cut
    return f"{_masked(begins)}... ({len(text)} characters)"


def _masked(text: str) -> str:
    if len(text) == _SECRET_KEY_CHARACTERS and _SECRET_KEY.fullmatch(text):
        return MASK
    if "://" in text:
        text = _URL_USER.sub(rf"\1{MASK}@", text)
    text = _ACCESS_KEY_ID.sub(MASK, text)
    if _ASSIGNED_HINT.search(text):  # `_ASSIGNED` is slow
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
        text = _PARAMETER.sub(rf"\1{MASK}", text)
    return _SIGNATURE.sub(rf"\1 {MASK}", text)


def encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def on_one_line(text: str) -> str:
    """Writes unprintable characters as escapes: safe for a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shown(text: str, *, name: str = "") -> str:
    """One printable line, bounded, without credentials. `name` may mark the value as secret."""
    if text and is_secret_name(name):
        return MASK
    line = on_one_line(masked(text)[: SHOWN_CHARACTERS + 1])  # an escape is not shorter than its character
    if len(line) <= SHOWN_CHARACTERS:
        return line
    return f"{line[:SHOWN_CHARACTERS]}... ({len(text)} characters)"


NONE: Final = "-"
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SHARD_PREFIX: Final = "shardId-"
_START, _END = 6, 12  # the end differs within a shard


def numbered(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def duration(seconds: float) -> str:
    """`850 ms`, `12.5 s`, `3 min`, `26 h`, `4 d`."""
    for unit_s, name in _TIMES:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{max(seconds, 0) * 1000:.0f} ms"


def about(seconds: float) -> str:
    """For times that keep changing: no unit below whole seconds."""
    return duration(seconds) if seconds >= 2 * _TIMES[-1][0] else f"{max(seconds, 0):.0f} s"


def size(count: float) -> str:
    for unit, name in _SIZES:
        if count >= unit:
            figure = count / unit
            return f"{figure:.1f} {name}" if figure < 10 else f"{figure:.0f} {name}"
    return f"{count:.0f} B"


def rate(bytes_per_s: float) -> str:
    return f"{size(bytes_per_s)}/s"


def short_number(checkpoint: str, shard_id: str = "") -> str:
    """Words such as `TRIM_HORIZON` stay. In a segment of a snapshot the items so far."""
    if segment_of(shard_id) is not None:
        from kcl_daemon.shards.snapshot import items_at

        if (items := items_at(shard_id, checkpoint)) is not None:
            return counted(items, "item")
    if len(checkpoint) <= _START + _END + 3:
        return checkpoint
    return f"{checkpoint[:_START]}...{checkpoint[-_END:]}"


def short_shard(shard_id: str) -> str:
    """`3` for `shardId-000000000003`, `snapshot 1 of 8` for its segment; other forms stay."""
    segment = segment_of(shard_id)
    if segment is not None:
        return f"snapshot {segment.index + 1} of {segment.count}"
    number = shard_id.removeprefix(_SHARD_PREFIX)
    has_number = number != shard_id and number.isascii() and number.isdigit()
    return number.lstrip("0") or "0" if has_number else shard_id


def short_shards(shard_ids: Sequence[str], *, most: int = 5) -> str:
    """`shard 3`, `shards 3 and 4`, `shards 0, 1, 2, 3, 4 and 7 more`."""
    names = [short_shard(each) for each in shard_ids]
    if len(names) == 1:
        return f"shard {names[0]}"
    last = names.pop() if len(names) <= most else f"{len(names) - most} more"
    return f"shards {', '.join(names[:most])} and {last}"


def counted(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
