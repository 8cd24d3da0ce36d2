"""Writes the reference of all properties from the tables: `python -m kcl_daemon.config.reference > docs/properties.md`.

Owns the words around the tables. A test says that the committed page is what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from kcl_daemon.config import credentials
from kcl_daemon.config.effective import default_of
from kcl_daemon.config.environment import variable_for
from kcl_daemon.config.inert import INERT, Inert
from kcl_daemon.config.key import Key
from kcl_daemon.config.keys import BY_NAME, KEYS
from kcl_daemon.observe.levels import exists
from kcl_daemon.observe.logback import PACKAGES

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
- 0 and `false` are taken at their word, unless the table says that 0 is the default. Where Java cannot be told them and goes on with its default, a line of the log says
  so (`property_honoured_unlike_java`).
- A variable of the environment, `KCL_` and the name of a property, wins over the file: `{variable}=20000` for
  `{example}`. Case does not count, nor do underlines; a dot is an underline or nothing. An empty variable is none, nor is one
  that Kubernetes sets for a Service, such as `KCL_ADMIN_PORT=tcp://10.0.0.1:80`.
- `${{NAME}}` in a value is text, as in Java. With `expandEnvironment=true` it is replaced by the variable, once;
  `${{NAME:-DEFAULT}}` allows for a variable that is not set, which is an error otherwise.
- `kcl-daemon check --properties FILE` reads the file and its environment as the daemon would, touches nothing, and prints
  what is in force and where each value comes from; `--with-aws` also looks whether stream, tables and permissions are
  there, and names what cannot be tried without an effect (`NOT TRIED`). `kcl-daemon iam-policy --properties FILE` prints the policy that the daemon needs.
- Credentials are never shown: a value that looks like one appears as `***`.
"""

_CREDENTIALS: Final = """\
## Credentials

`AwsCredentialsProvider`, `AwsCredentialsProviderDynamoDB`, `AwsCredentialsProviderCloudWatch` and
`AwsCredentialsProviderGlue` (the part up to `Provider` in any case) take the class names of the Java daemon, separated by commas, with or without their package. The
first that has credentials counts. `kinesisCredentialsProvider.class` and its like are the same.

| Value | Where the credentials come from |
|---|---|
| `DefaultCredentialsProvider` | botocore's own chain: environment, profile (`AWS_PROFILE`), SSO, web identity, container, pod \
identity, instance (`credentials_from_sdk_chain`) |
| `EnvironmentVariableCredentialsProvider` | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN` |
| `ProfileCredentialsProvider`, `ProfileCredentialsProvider\\|NAME` | a profile, whatever is in it: keys, a role, SSO, a process |
| `WebIdentityTokenFileCredentialsProvider` | `AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN` (IRSA) |
| `ContainerCredentialsProvider` | the ECS task or EKS pod |
| `InstanceProfileCredentialsProvider` | the EC2 instance |
| `StsAssumeRoleCredentialsProvider\\|ROLE_ARN\\|SESSION_NAME`, then in any order `endpointRegion=REGION`, \
`endpoint=HOST^REGION`, `externalId=ID` | the role, assumed with what the default chain finds, and renewed |
| {old} | as their successors, with a warning: names of the SDK 1.x, which the Java daemon 3.x refuses |
| `SystemPropertyCredentialsProvider` | passed over with a warning where others are named: there is no JVM here |
| `AnonymousCredentialsProvider`, `StaticCredentialsProvider`, `ProcessCredentialsProvider` | refused, with what to do instead |
| anything else | refused. Java drops it silently; here nobody runs under another identity than the one written down |

No line at all means botocore's chain; DynamoDB, CloudWatch and Glue are asked as Kinesis is where they have no line. The endpoints
follow `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_KINESIS`, `AWS_ENDPOINT_URL_DYNAMODB` and their like where the properties do not
give them.
"""

_LOG: Final = """\
## The log

The log goes to stderr: aligned text on a terminal, else one JSON object a line (`--log-format console|json`). Each
event has `timestamp` (UTC, milliseconds), `level`, `event` and its fields. The Java daemon logs to stdout; here stdout
stays empty while the daemon runs. [Events](events.md) lists them all, with what to do.

**Levels.** `--log-level debug|info|warning|error|off` sets the lowest that is written, of all components or also of single ones:

```text
--log-level INFO,kcl_daemon.retrieval=DEBUG,kcl_daemon.coordination.elector=WARNING
```

A component is a package or a module of the daemon; `kcl_daemon.` may be left out, and the deepest one that is named counts.
What children write to stderr has the level of `childStderrLevel`.

**Logback files.** Of `-l FILE` these count, and `--log-level` wins over them: the level of the root logger; the levels of loggers
named as KCL's packages, each for what does the same here; a `ConsoleAppender` of the root logger (stdout, or stderr with
`<target>System.err</target>`); the file of a `FileAppender` or `RollingFileAppender` of the root logger, to which lines are
appended (rotate it in place, such as with `copytruncate`). `${NAME}` is a property of the file or a variable of the environment.
One event, `log_configuration_partly_read`, names everything else. A file that is not logback's is refused.

| Logger in the file | Component |
|---|---|
{packages}

Credentials are masked in every line, whatever its level.
"""


def reference() -> str:
    """The page, in Markdown."""
    example = "failoverTimeMillis"
    parts = [
        _HEAD.format(
            blank=_listed(key.name for key in KEYS if key.blank_is_absent),
            truth=BY_NAME["callProcessRecordsEvenForEmptyRecordList"].kind.allowed,
            example=example,
            variable=variable_for(example),
        ),
        "## Properties of the Java daemon that are acted on\n",
        *_key_table(key for key in KEYS if not key.extension),
        "## Properties of this daemon\n",
        "The Java daemon ignores them, so that a file can serve both; but it refuses `shardPrioritization`.\n",
        *_key_table(key for key in KEYS if key.extension),
        _CREDENTIALS.format(old=_listed(sorted(credentials.SOURCES_OF_SDK_1))),
        "## Accepted, without effect\n",
        (
            "Each gives one warning (`property_has_no_effect`). So does what Java passes to builders inside those of the SDK's "
            "clients, such as\n`dynamoDbClient.overrideConfiguration.apiCallTimeout`: time-outs, retries and connections are the daemon's own.\n"
        ),
        *_inert_table(INERT.values()),
        _LOG.replace("{packages}", _packages()),
    ]
    return "\n".join(parts)


def _key_table(keys: Iterable[Key]) -> Iterator[str]:
    rows = ["| Key | Meaning | Allowed | Default |", "|---|---|---|---|"]
    for key in keys:
        names = _listed((key.name, *key.aliases), " or ")
        rows.append(f"| {names} | {key.meaning} | {key.kind.allowed} | {default_of(key)} |")
    yield "\n".join(rows) + "\n"


def _inert_table(properties: Iterable[Inert]) -> Iterator[str]:
    """One row for each, but for those that are known by their bare name as well."""
    rows = ["| Key | Why |", "|---|---|"]
    for each in properties:
        _, dot, bare = each.name.rpartition(".")
        if dot and bare in INERT:
            continue
        rows.append(f"| `{each.name}` | {each.why} |")
    yield "\n".join(rows) + "\n"


def _packages() -> str:
    """KCL's packages, and who does the same here."""
    return "\n".join(
        f"| `{package}` | {_listed(f'kcl_daemon.{inner}'.rstrip('.') for inner in filter(exists, components))} |"
        for package, components in PACKAGES.items()
    )


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.stdout.write(reference())
