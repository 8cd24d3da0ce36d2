"""Writes the reference of all properties: `python -m tools.properties_reference > docs/properties.md`.

A test compares the committed page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from kcl_daemon.config import services
from kcl_daemon.config.kinds import INT_MAX, LONG_MAX, Key
from kcl_daemon.config.load import default_of
from kcl_daemon.config.properties import variable_for
from kcl_daemon.config.schema import meaning_of
from kcl_daemon.config.settings import BY_NAME, INERT, KEYS, TOPICS, nearest
from kcl_daemon.wings import PAGES

MATTER: Final[dict[str, str]] = {
    "executableName": "For one function it is `python -m kcl_client.run consumer:handle`.",
    "applicationName": "Choose it once: with another name everything is read again from the first position.",
    "streamName": "Several streams with one daemon: [many streams](many-streams.md).",
    "streamArn": "Set it for a stream of another account.",
    "regionName": "Set it on a laptop; on AWS the environment often has it.",
    "AwsCredentialsProvider": "Leave it out, unless the daemon must take one certain identity.",
    "initialPositionInStream": "`TRIM_HORIZON` reads all that the stream still has. It counts only the first time.",
    "retrievalMode": "Set `POLLING` unless you need records within 100 ms: fan-out costs money for each shard and hour.",
    "metricsLevel": "Set `SUMMARY` or `NONE` to pay less for CloudWatch; `/metrics` of the status page is free.",
    "maxRecords": "Lower it when a batch takes your program too long.",
    "idleTimeBetweenReadsInMillis": "Raise it when other applications poll the same stream: all share five reads a second of a shard.",
    "batchWindowMillis": "Set it when each call of your program is expensive, such as a bulk insert.",
    "recordFilter": "Set it when your program needs few of the records.",
    "shardConcurrency": "Raise it when the work on one record is slow and a shard falls behind.",
    "childPreload": "Set it when a worker has many shards: less memory, faster starts.",
    "timeoutInSeconds": "Set it, such as to 300, so that a child that hangs is noticed.",
    "poisonRecordPolicy": "Set `DEADLETTER` so that one bad record does not hold up its shard.",
    "deadLetterDestination": "`file:letters.jsonl` to begin with; a bucket or a queue on servers.",
    "failoverTimeMillis": "Lower it to take over sooner from a worker that died; it costs more requests to the lease table.",
    "maxLeasesForWorker": "Lower it where the memory of a host allows fewer children.",
    "shutdownGraceMillis": "Keep it below the time that systemd or Kubernetes waits before it kills.",
    "adminPort": "Set it: `kcl-daemon status`, `top`, probes and Prometheus need it.",
}
"""What one would do with each, in the order of the reference, after what the property means."""

_TRUTH: Final = BY_NAME["callProcessRecordsEvenForEmptyRecordList"].kind.allowed

_HEAD: Final = """\
# Properties

<!-- Written by `python -m tools.properties_reference`; change the settings in `daemon/kcl_daemon/config` instead. -->

`kcl-daemon --properties FILE` reads the properties file of the Java MultiLangDaemon (KCL 3.x). A file that works with the
Java daemon works here too. If a value cannot be valid, the daemon refuses the file, with one line for each such value.

## The properties that matter

Most applications need no others. All the rest is below, [by topic](#all-the-rest); the names are on the folds, so the search of
your browser finds them. \\*: the Java daemon does not know the property and ignores it, so one file can serve both (it refuses
`shardPrioritization` alone).
"""

_READING: Final = """\
## How a file is read

- Syntax of `java.util.Properties`: `=`, `:` or a space between key and value; `#` or `!` starts a comment line; a backslash
  at the end of a line continues it; `\\uXXXX` is a character; bytes are ISO-8859-1. No comments after a value. At most 1 MiB.
- Keys are case-sensitive, as in Java. An unknown key is ignored and logged once (`unknown_property`), with the most similar
  known key.
- If a property is given twice, also under its two names, the last one is used (`property_given_twice`).
- Spaces around a value are ignored. If Java cannot read a value, it uses 0, a default or `false`; here it is an error with
  file, line, key and value. All errors of a file are shown at once, the exit code is 2, and nothing has been changed.
- An empty value is an error, except for {blank}: there it means the same as no line.
- Booleans, in any case: {truth}.
- 0 and `false` are honoured unless its text says that 0 means the default. If Java ignores such a value and uses its
  default, the log says so (`property_honoured_unlike_java`).
- An environment variable `KCL_` plus the property name overrides the file: `{variable}=20000` for `{example}`. Case and
  underscores do not matter; a dot is an underscore or nothing. Empty variables are ignored, and so are those that
  Kubernetes sets for a Service, such as `KCL_ADMIN_PORT=tcp://10.0.0.1:80`.
- `${{NAME}}` in a value is text, as in Java. With `expandEnvironment=true` it is replaced by the environment variable, once.
  A variable that is not set is an error unless you write `${{NAME:-DEFAULT}}`.
- `kcl-daemon check --properties FILE` reads the file and its environment as the daemon does, changes nothing, and prints
  each value and its source. `--with-aws` also checks that stream, tables and permissions exist, and names what it cannot
  test without side effects (`NOT TRIED`). `kcl-daemon iam-policy --properties FILE` prints the required IAM policy.
- Credentials are never shown: a value that looks like one appears as `***`.
"""

_CREDENTIALS: Final = """\
## Credentials

`AwsCredentialsProvider`, `AwsCredentialsProviderDynamoDB`, `AwsCredentialsProviderCloudWatch` and
`AwsCredentialsProviderGlue` (the part up to `Provider` in any case) take the class names of the Java daemon, separated by
commas, with or without package. The first that has credentials is used. `kinesisCredentialsProvider.class` and the
corresponding names of the other services are aliases.

| Value | Where the credentials come from |
|---|---|
| `DefaultCredentialsProvider` | botocore's own chain: environment, profile (`AWS_PROFILE`), SSO, web identity, container, pod \
identity, instance (`credentials_from_sdk_chain`) |
| `EnvironmentVariableCredentialsProvider` | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` |
| `ProfileCredentialsProvider`, `ProfileCredentialsProvider\\|NAME` | a profile with keys, a role, SSO or a process |
| `WebIdentityTokenFileCredentialsProvider` | `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN` (IRSA) |
| `ContainerCredentialsProvider` | the ECS task or EKS pod |
| `InstanceProfileCredentialsProvider` | the EC2 instance |
| `StsAssumeRoleCredentialsProvider\\|ROLE_ARN\\|SESSION_NAME`, then in any order `endpointRegion=REGION`, \
`endpoint=HOST^REGION`, `externalId=ID` | the role, assumed with credentials of the default chain, and renewed |
| {old} | same as their successors, with a warning. These are names of SDK 1.x; the Java daemon 3.x refuses them |
| `SystemPropertyCredentialsProvider` | ignored with a warning if other providers are listed: there is no JVM here |
| `AnonymousCredentialsProvider`, `StaticCredentialsProvider`, `ProcessCredentialsProvider` | refused, with an alternative |
| anything else | refused, so that a typo never falls back to another identity. Java drops it silently |

Without any such line, the daemon uses botocore's chain. DynamoDB, CloudWatch and Glue use the provider of Kinesis unless
they have their own. Endpoints that the properties do not set come from `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KINESIS`,
`AWS_ENDPOINT_URL_DYNAMODB` and so on.
"""

_LOG: Final = """\
## The log

The log goes to stderr: aligned text on a terminal, otherwise one JSON object per line (`--log-format console|json`). Each
event has `timestamp` (UTC, milliseconds), `level`, `event` and its fields. The Java daemon logs to stdout; here stdout
stays empty while the daemon runs. [Events](events.md) lists all events, with what to do.

**Levels.** `--log-level debug|info|warning|error|off` sets the lowest level to log, for all components or for single ones:

```text
--log-level INFO,kcl_daemon.retrieval=DEBUG,kcl_daemon.fleet.elector=WARNING
```

A component is a package or a module of the daemon. You can omit `kcl_daemon.`; the most specific component applies.
Lines that children write to stderr have the level of `childStderrLevel`.

A logback file (`-l FILE`) has no effect: the event `log_configuration_ignored` says so. The log goes to stderr.

Credentials are masked in every line.
"""


def reference() -> str:
    example = "failoverTimeMillis"
    parts = [
        _HEAD,
        *_entries(key for key in KEYS if key.name in MATTER),
        _READING.format(
            blank=_listed(key.name for key in KEYS if key.blank_is_absent),
            truth=_TRUTH,
            example=example,
            variable=variable_for(example),
        ),
        "## All the rest\n",
        *_topics(),
        _CREDENTIALS.format(old=_listed(sorted(services.SOURCES_OF_SDK_1))),
        "## Accepted, without effect\n",
        (
            "Each logs one warning (`property_has_no_effect`). So do nested properties of the SDK client builders, such "
            "as\n`dynamoDbClient.overrideConfiguration.apiCallTimeout`: the daemon has its own timeouts, retries and connections.\n"
        ),
        *_inert_table(),
        _LOG,
    ]
    return "\n".join(parts)


def _topics() -> Iterator[str]:
    """Each with what is not shown above, folded; the names stand on the fold, so that a search finds them."""
    for topic, targets in TOPICS.items():
        keys = [key for key in KEYS if nearest(key.target) in targets]
        folded = [key for key in keys if key.name not in MATTER]
        above = [f"[`{key.name}`](#{anchor_of(key)})" for key in keys if key.name in MATTER]
        yield f"### {topic}\n"
        if topic in PAGES:
            yield f"More: [{PAGES[topic].removesuffix('.md')}]({PAGES[topic]}).\n"
        if above:
            yield f"Above: {', '.join(above)}.\n"
        if folded:
            names = ", ".join(f"<code>{key.name}</code>" for key in folded)
            yield f'<details markdown="1">\n<summary>{names}</summary>\n'
            yield from _entries(folded)
            yield "</details>\n"


def _entries(keys: Iterable[Key]) -> Iterator[str]:
    """A list and no table: names, values and texts are long, and a page is narrow."""
    yield "\n".join(map(_entry, keys)) + "\n"


def _entry(key: Key) -> str:
    star = "\\*" if key.extension else ""
    default = default_of(key)
    shown = default if default.startswith(("required", "none")) else f"default: {default}"
    use = f" *{MATTER[key.name]}*" if key.name in MATTER else ""
    aliases = f" Also {_listed(key.aliases)}." if key.aliases else ""
    return (
        f'- <a id="{anchor_of(key)}"></a>**`{key.name}`**{star} ({shown}): {meaning_of(key)}{use}{aliases}\n'
        f"  Allowed: {allowed_of(key)}."
    )


def anchor_of(key: Key) -> str:
    return key.name.lower()


def allowed_of(key: Key) -> str:
    """As errors say it, but what many share in few words."""
    allowed = key.kind.allowed
    if allowed == _TRUTH:
        return "true or false"
    if allowed.startswith("DefaultCredentialsProvider,"):
        return "[providers](#credentials), separated by commas"
    return re.sub(rf"^(\d+) to (?:{INT_MAX}|{LONG_MAX}) (\w+)", r"\2, from \1", allowed)


def _inert_table() -> Iterator[str]:
    """Leaves out a dotted name if its last part has a row, too."""
    rows = ["| Key | Why |", "|---|---|"]
    for name, why in INERT.items():
        _, dot, bare = name.rpartition(".")
        if not (dot and bare in INERT):
            rows.append(f"| `{name}` | {why} |")
    yield "\n".join(rows) + "\n"


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(reference())
