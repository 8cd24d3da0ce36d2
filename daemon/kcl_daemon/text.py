"""Text that came from outside, made fit to be shown: credentials masked, control characters escaped, length bounded.

Pure. Knows nothing of logging or of settings; both use it for whatever they print.

Figures in words, as every view for people shows them: times, sizes, rates, checkpoints, shards.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"
SHOWN_CHARACTERS: Final = 200
MASKED_CHARACTERS: Final = 64 * 1024
"""Of a longer text only the beginning is masked and shown: some milliseconds of work, whoever wrote it."""

# Names that tell what their value is. `token` alone is left out: concurrency tokens and page tokens are no secrets.
_SECRET_NAME = re.compile(
    r"secret|passw|credential(?!s?_?provider)|authorization|private_?key|access_?key|(session|security|admin)_?token(?!_?file)",
    re.IGNORECASE,
)
# Each of these takes time in proportion to the text, whatever the text: they run on the event loop. So a word is looked
# at from its beginning only, and what has been read over is not read again (`++`).
_ACCESS_KEY_ID = re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}+\b")
_ASSIGNED = re.compile(
    r"(?i)((?<![\w.-])"
    r"(?=[\w.-]*?(?:secret|passw(?:or)?d|session_?token|security-?token|admin_?token(?!_?file)|access_?key|x-amz-signature))"
    r"[\w.-]++[\"']?\s*+[=:]\s*+[\"']?)[^\s\"'&,;]++"
)
# In the parameters of an address (`sc://HOST/;token=...`, `https://HOST/?access_token=...`) a bare `token` is a secret.
_PARAMETER = re.compile(
    r"(?i)([;?&](?:(?:access|auth|bearer|id|refresh)[_-]?)?(?:token|api[_-]?key)=)[^\s\"'&;]+"
)
_ASSIGNED_HINT = re.compile(r"(?i)secret|passw|token|(?:access|api)[_-]?key|x-amz-signature")
_URL_USER = re.compile(r"(://)[^/\s@]++@")
_CUT_URL_USER = re.compile(r"(://)[^/\s@]++\Z")
_SIGNATURE = re.compile(r"(AWS4-HMAC-SHA256)\s.*")
# A secret access key has 40 characters and no mark of its own, so only a value that is nothing else is taken for one.
_SECRET_KEY_CHARACTERS: Final = 40
_SECRET_KEY = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9+=][A-Za-z0-9/+=]{39}")


def is_secret_name(name: str) -> bool:
    """Whether the value of a field or key of this name must never be shown."""
    return _SECRET_NAME.search(name) is not None


def masked(text: str) -> str:
    """The text with whatever looks like a credential replaced by `MASK`; all else unchanged.

    Takes time in proportion to the text. Of more than `MASKED_CHARACTERS` the rest is left out, and that is said.
    """
    if len(text) <= MASKED_CHARACTERS:
        return _masked(text)
    begins = _CUT_URL_USER.sub(rf"\1{MASK}", text[:MASKED_CHARACTERS])  # its @ may come behind the cut
    return f"{_masked(begins)}... ({len(text)} characters)"


def _masked(text: str) -> str:
    if len(text) == _SECRET_KEY_CHARACTERS and _SECRET_KEY.fullmatch(text):
        return MASK
    if "://" in text:
        text = _URL_USER.sub(rf"\1{MASK}@", text)
    text = _ACCESS_KEY_ID.sub(MASK, text)
    if _ASSIGNED_HINT.search(text):  # the other looks at every word more than once
        text = _ASSIGNED.sub(rf"\1{MASK}", text)
        text = _PARAMETER.sub(rf"\1{MASK}", text)
    return _SIGNATURE.sub(rf"\1 {MASK}", text)


def encodable(text: str) -> str:
    """The text with surrogates, which no encoding takes, written as escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def on_one_line(text: str) -> str:
    """The text with every character that is not printable written as an escape: safe for a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shown(text: str, *, name: str = "") -> str:
    """A value from outside for an error message: one printable line, bounded, without credentials.

    Args:
        text: the value.
        name: the key or field it belongs to, which may tell that it is a secret.
    """
    if text and is_secret_name(name):
        return MASK
    line = on_one_line(masked(text))
    if len(line) <= SHOWN_CHARACTERS:
        return line
    return f"{line[:SHOWN_CHARACTERS]}... ({len(text)} characters)"


NONE: Final = "-"
"""What stands where there is nothing to tell."""
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SHARD_PREFIX: Final = "shardId-"
_START, _END = 6, 12  # of a checkpoint's 56 digits: the end is what differs within a shard


def numbered(count: int, what: str) -> str:
    """So many of something: `1 lease`, `2 leases`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def duration(seconds: float) -> str:
    """A time for people: `850 ms`, `12.5 s`, `3 min`, `26 h`, `4 d`."""
    for unit_s, name in _TIMES:
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{max(seconds, 0) * 1000:.0f} ms"


def about(seconds: float) -> str:
    """A time that changes all the while: whole seconds, at least."""
    return duration(seconds) if seconds >= 2 * _TIMES[-1][0] else f"{max(seconds, 0):.0f} s"


def size(count: float) -> str:
    """Bytes for people: `512 B`, `1.5 KiB`, `48 MiB`."""
    for unit, name in _SIZES:
        if count >= unit:
            figure = count / unit
            return f"{figure:.1f} {name}" if figure < 10 else f"{figure:.0f} {name}"
    return f"{count:.0f} B"


def rate(bytes_per_s: float) -> str:
    """Bytes a second for people."""
    return f"{size(bytes_per_s)}/s"


def short_number(checkpoint: str) -> str:
    """A checkpoint without the middle of its digits; words such as `TRIM_HORIZON` as they are."""
    if len(checkpoint) <= _START + _END + 3:
        return checkpoint
    return f"{checkpoint[:_START]}...{checkpoint[-_END:]}"


def short_shard(shard_id: str) -> str:
    """A shard id as people say it: `3` for `shardId-000000000003`; one of another form as it is."""
    number = shard_id.removeprefix(_SHARD_PREFIX)
    has_number = number != shard_id and number.isascii() and number.isdigit()
    return number.lstrip("0") or "0" if has_number else shard_id


def short_shards(shard_ids: Sequence[str], *, most: int = 5) -> str:
    """Some shards in a sentence: `shard 3`, `shards 3 and 4`, `shards 0, 1, 2, 3, 4 and 7 more`."""
    names = [short_shard(each) for each in shard_ids]
    if len(names) == 1:
        return f"shard {names[0]}"
    last = names.pop() if len(names) <= most else f"{len(names) - most} more"
    return f"shards {', '.join(names[:most])} and {last}"


def counted(count: int, one: str, several: str = "") -> str:
    """A count with its noun: `1 child`, `2 children`; without `several` the noun takes an s."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
