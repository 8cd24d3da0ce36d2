"""Writes the reference of all properties from the tables: `python -m kcl_daemon.config.reference > docs/properties.md`.

Owns the words around the tables. A test says that the committed page is what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from enum import Enum
from typing import Final

from kcl_daemon.config import credentials
from kcl_daemon.config.inert import INERT, Inert
from kcl_daemon.config.key import Key
from kcl_daemon.config.keys import BY_NAME, KEYS
from kcl_daemon.config.settings import (
    BalanceSettings,
    ChildSettings,
    Endpoints,
    LeaseSettings,
    RetrievalSettings,
    Settings,
)
from kcl_daemon.config.table_settings import TablesSettings
from kcl_daemon.shards.shard import InitialPosition

_SECTIONS: Final[dict[str, type]] = {
    "": Settings,
    "child": ChildSettings,
    "endpoints": Endpoints,
    "leases": LeaseSettings,
    "balance": BalanceSettings,
    "retrieval": RetrievalSettings,
    "tables": TablesSettings,
}

_HEAD: Final = """\
# Properties

<!-- Written by `python -m kcl_daemon.config.reference`; change the tables in `daemon/kcl_daemon/config` instead. -->

`kcl-daemon --properties FILE` reads the properties file of the Java MultiLangDaemon (KCL 3.x). A file that starts the
Java daemon starts this one, or is refused with one line for each value that cannot be meant.

## How a file is read

- The syntax is that of `java.util.Properties`: `=`, `:` or a blank between key and value, `#` and `!` begin a comment
  line, a backslash at the end of a line continues it, `\\uXXXX` is a character, bytes are ISO-8859-1. There are no
  comments behind a value. At most 1 MiB.
- Keys are case-sensitive, as in Java. A key that nobody knows is left alone and named once in the log
  (`unknown_property`), with the known key that it most looks like.
- Of a property that is given twice, also under its two names, the last one counts (`property_given_twice`).
- Blanks around a value do not count. Java takes 0, a default or `false` for a value that it cannot read; here it is an
  error with file, line, key and value. All errors of a file are shown at once, the exit code is 2, and nothing has
  been touched.
- An empty value is an error, but for {blank}, where it is the same as no line.
- Booleans, in any case: {truth}.
- Credentials are never shown: a value that looks like one appears as `***`.
"""

_CREDENTIALS: Final = """\
## Credentials

`AwsCredentialsProvider`, `AwsCredentialsProviderDynamoDB` and `AwsCredentialsProviderCloudWatch` (the part up to
`Provider` in any case) take the class names of the Java daemon, separated by commas, with or without their package.

| Value | What happens |
|---|---|
| {chain} | botocore's own chain is used, which contains all of these (`credentials_from_sdk_chain`) |
| {old} | the same with a warning: names of the SDK 1.x, which the Java daemon 3.x refuses |
| `StsAssumeRoleCredentialsProvider` with arguments, `ProfileCredentialsProvider` with a profile, \
`AnonymousCredentialsProvider` | refused: the daemon never runs under another identity than the one written down |
| anything else | passed over with a warning; refused where nothing else is named |

No line at all means botocore's chain: environment, profile (`AWS_PROFILE`), web identity, container, instance. The
endpoints follow `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KINESIS` and `AWS_ENDPOINT_URL_DYNAMODB` where the properties
do not give them.
"""

_NOT_YET: Final = """\
Each gives one warning (`property_not_supported_yet`), unless its value asks for what is done anyway. The same holds for
the dotted paths of the Java daemon's beans.
"""

_LOG: Final = """\
## The log

The log goes to stderr: aligned text on a terminal, else one JSON object a line (`--log-format console|json`). Each
event has `timestamp` (UTC, milliseconds), `level`, `event` and its fields. The Java daemon logs to stdout; here stdout
stays empty while the daemon runs. `--log-level debug|info|warning|error` sets what is written. A logback file
(`-l FILE`) is accepted and not read.
"""


def reference() -> str:
    """The page, in Markdown."""
    ours = [key for key in KEYS if not key.extension]
    extensions = [key for key in KEYS if key.extension]
    parts = [
        _HEAD.format(
            blank=_listed(key.name for key in KEYS if key.blank_is_absent),
            truth=BY_NAME["callProcessRecordsEvenForEmptyRecordList"].kind.allowed,
        ),
        "## Properties of the Java daemon that are acted on\n",
        *_key_table(ours),
        "## Properties of this daemon\n",
        "The Java daemon ignores them, so that a file can serve both.\n",
        *_key_table(extensions),
        _CREDENTIALS.format(
            chain=_listed(sorted(credentials.CHAIN)), old=_listed(sorted(credentials.CHAIN_OF_SDK_1))
        ),
        "## Accepted, not supported yet\n",
        _NOT_YET,
        *_inert_table(each for each in INERT.values() if not each.never),
        "## Accepted, without effect\n",
        "Each gives one warning (`property_has_no_effect`).\n",
        *_inert_table(each for each in INERT.values() if each.never),
        _LOG,
    ]
    return "\n".join(parts)


def default_of(key: Key) -> str:
    """The default as the reference shows it."""
    if key.default is not None:
        return key.default
    if key.required:
        return "required"
    section, _, attribute = key.target.rpartition(".")
    if section.startswith("tables."):
        return _word(getattr(getattr(TablesSettings(), section.removeprefix("tables.")), attribute))
    for each in fields(_SECTIONS[section]):
        if each.name == attribute:
            value = each.default if each.default_factory is MISSING else each.default_factory()
            return _word(value)
    raise LookupError(f"{key.name} goes to {key.target}, which is no field of the settings")


def _word(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case InitialPosition():
            return value.at.value
        case Enum():
            return str(value.value)
        case _:
            return str(value)


def _key_table(keys: Iterable[Key]) -> Iterator[str]:
    rows = ["| Key | Meaning | Allowed | Default |", "|---|---|---|---|"]
    for key in keys:
        names = _listed((key.name, *key.aliases), " or ")
        rows.append(f"| {names} | {key.meaning} | {key.kind.allowed} | {default_of(key)} |")
    yield "\n".join(rows) + "\n"


def _inert_table(properties: Iterable[Inert]) -> Iterator[str]:
    """One row for each, but for those that are known by their bare name as well."""
    rows = ["| Key | Why | No warning for |", "|---|---|---|"]
    for each in properties:
        _, dot, bare = each.name.rpartition(".")
        if dot and bare in INERT:
            continue
        rows.append(
            f"| `{each.name}` | {each.why} | {_listed(word.upper() for word in sorted(each.already_so))} |"
        )
    yield "\n".join(rows) + "\n"


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(reference())
