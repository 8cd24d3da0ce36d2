"""Text that came from outside, made fit to be shown: credentials masked, control characters escaped, length bounded.

Pure. Knows nothing of logging or of settings; both use it for whatever they print.
"""

from __future__ import annotations

import re
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
