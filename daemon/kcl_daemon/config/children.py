"""Settings and properties of child processes: limits, user, restarts, failures, dead letters.

The keys say what the fields mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from kcl_daemon.config.kinds import (
    INT_MAX,
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    InvalidValue,
    Key,
    ValueKind,
    choice,
    endpoint,
    name,
    stream_arn,
    trimmed,
    truth,
    whole_number,
)
from kcl_daemon.ports import LogLevel


class ChildProtocol(Enum):
    CURRENT = "CURRENT"
    KCL_1_8 = "KCL_1_8"
    KCL_1_0 = "KCL_1_0"


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """Times: None is no limit; other limits: None is the daemon's.

    Args:
        stuck_timeout_ms: for one action without a new checkpoint.
        shutdown_grace_ms: in all.
        exit_grace_ms: after stdin is closed, and again after SIGTERM.
        user: `USER` or `USER:GROUP`; None: the daemon's.
        memory_limit_bytes: address space per process.
        open_files_limit: per process.
        processes_limit: of the whole user.
    """

    command: tuple[str, ...]
    timeout_s: float | None = None
    shutdown_grace_ms: int = 20_000
    call_for_empty: bool = False
    backoff_first_ms: int = 500
    backoff_most_ms: int = 60_000
    exit_grace_ms: int = 5_000
    protocol: ChildProtocol = ChildProtocol.CURRENT
    warn_after_ms: int | None = None
    user: str | None = None
    memory_limit_bytes: int | None = None
    open_files_limit: int | None = None
    processes_limit: int | None = None
    inherit_credentials: bool = True
    stuck_timeout_ms: int | None = None
    stderr_level: LogLevel = "info"
    log_messages: bool = False


MAX_ID: Final = 2**32 - 2
"""The largest user or group id; the next one means "no change" to the kernel: root's child stays root."""

_USER: Final = name(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?",
    f"USER or USER:GROUP, names or numbers up to {MAX_ID}",
)


def _user() -> ValueKind:
    def read(text: str) -> object:
        word = str(_USER.read(text))
        for part in word.split(":"):
            if part.isdecimal() and int(part) > MAX_ID:
                raise InvalidValue(f"no user or group has the number {part}")
        return word

    return ValueKind(read, _USER.allowed)


BACKOFF_FIRST: Final = Key(
    "childRestartBackoffMillis",
    MILLISECONDS,
    "child.backoff_first_ms",
    "Pause before a failed child is restarted; doubles with each failure in a row.",
    extension=True,
)
BACKOFF_MOST: Final = Key(
    "childRestartBackoffMaxMillis",
    MILLISECONDS,
    "child.backoff_most_ms",
    "Longest pause before a failed child is restarted.",
    extension=True,
)

CHILD_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "timeoutInSeconds",
        whole_number(1, INT_MAX, "seconds"),
        "child.timeout_s",
        "How long a child may take for one answer. Then it is replaced.",
        default="none: no limit",
    ),
    Key(
        "childStuckTimeoutMillis",
        MILLISECONDS,
        "child.stuck_timeout_ms",
        "How long a child may work on one action without a new checkpoint. Then this child alone is "
        "replaced. Unlike `timeoutInSeconds`, a checkpoint that repeats an old position does not "
        "restart the timer, and time in which the lease table refuses checkpoints does not count.",
        default="none: no limit",
        extension=True,
    ),
    Key(
        "shutdownGraceMillis",
        MILLISECONDS_OR_NONE,
        "child.shutdown_grace_ms",
        "How long the children may take to finish at shutdown. Java's default is 0, which loses the "
        "last checkpoint.",
    ),
    Key(
        "callProcessRecordsEvenForEmptyRecordList",
        truth(),
        "child.call_for_empty",
        "Whether children get empty batches.",
    ),
    BACKOFF_FIRST,
    BACKOFF_MOST,
    Key(
        "childExitGraceMillis",
        MILLISECONDS_OR_NONE,
        "child.exit_grace_ms",
        "How long a child may take to exit after its stdin is closed, and again after SIGTERM.",
        extension=True,
    ),
    Key(
        "childProtocol",
        choice({generation.value: generation for generation in ChildProtocol}),
        "child.protocol",
        "Protocol of the children. `CURRENT`: KCL 2.x and 3.x. `KCL_1_8`: client libraries 1.x since "
        "2017, `shutdown` at lease loss and shard end. `KCL_1_0`: older ones, also the key "
        "`checkpoint`, and no `shutdownRequested`, so records without a checkpoint are repeated after a "
        "stop.",
        extension=True,
    ),
    Key(
        "logWarningForTaskAfterMillis",
        MILLISECONDS,
        "child.warn_after_ms",
        "Logs a warning (`child_is_slow`) when a child needs longer for one action.",
        default="none: no warning",
    ),
    Key(
        "childUser",
        _user(),
        "child.user",
        "User, and optionally group, of the children. Only if the daemon runs as root.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childMemoryLimitBytes",
        whole_number(1024**2, LONG_MAX, "bytes"),
        "child.memory_limit_bytes",
        "Maximum address space of each child process (RLIMIT_AS). Node and Java reserve far more than "
        "they use. Linux only.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childOpenFilesLimit",
        whole_number(16, INT_MAX, "files"),
        "child.open_files_limit",
        "Maximum number of open files of each child process (RLIMIT_NOFILE). Linux only.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childProcessesLimit",
        whole_number(1, INT_MAX, "processes"),
        "child.processes_limit",
        "Maximum number of processes of the children's user, including its other programs "
        "(RLIMIT_NPROC; root is not limited). Linux only.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childInheritCredentials",
        truth(),
        "child.inherit_credentials",
        "Whether children get the daemon's AWS credentials. If not, their environment has no `AWS_...` "
        "variables that are or lead to credentials and no headers for the metrics collector "
        "(`OTEL_EXPORTER_OTLP_HEADERS`), and their SDKs do not ask the instance for its role. Applies "
        "to Spark pipelines too, but not to sidecar containers. See "
        "[Security](security.md#children-and-credentials).",
        extension=True,
    ),
    Key(
        "childStderrLevel",
        choice({"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"}),
        "child.stderr_level",
        "Level of the log events for a child's stderr (`child_stderr`). The Java daemon uses ERROR.",
        default="INFO",
        extension=True,
    ),
    Key(
        "childLogMessages",
        truth(),
        "child.log_messages",
        "Whether [`log` messages](protocol.md#log-messages) of children are logged (`child_log`). If "
        "not, they are stray output, as in Java.",
        extension=True,
    ),
)


class ChildFailurePolicy(Enum):
    RESTART = "RESTART"
    EXIT = "EXIT"


class PoisonRecordPolicy(Enum):
    """For a record that makes one child after another fail."""

    RETRY = "RETRY"
    SKIP = "SKIP"
    DEADLETTER = "DEADLETTER"


class DeadLetterStore(Enum):
    FILE = "file"
    SQS = "sqs"
    KINESIS = "kinesis"


@dataclass(frozen=True, slots=True)
class DeadLetterDestination:
    """`address` is a path, queue URL, or stream name or ARN; `region_name` comes from it."""

    box: DeadLetterStore
    address: str
    region_name: str | None = None

    def __str__(self) -> str:
        return f"{self.box.value}:{self.address}"


@dataclass(frozen=True, slots=True)
class FailureSettings:
    """`failures_most` counts failures in a row without progress; 0: never release the lease."""

    policy: ChildFailurePolicy = ChildFailurePolicy.RESTART
    failures_most: int = 10
    degraded_ms: int = 60_000
    poison: PoisonRecordPolicy = PoisonRecordPolicy.RETRY
    poison_tries: int = 3
    dead_letters: DeadLetterDestination | None = None


_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_QUEUE_PATH: Final = re.compile(r"/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?")
# sqs.eu-west-1.amazonaws.com, vpce-....sqs.eu-west-1.vpce.amazonaws.com, eu-west-1.queue.amazonaws.com
_REGION: Final = re.compile(
    r"(?:^|\.)(?:sqs(?:-fips)?\.(?P<new>[a-z0-9-]+)|(?P<old>[a-z0-9-]+)\.queue)\.(?:vpce\.)?amazonaws\."
)


def dead_letter_destination() -> ValueKind:
    def read(text: str) -> DeadLetterDestination:
        scheme, colon, rest = trimmed(text).partition(":")
        boxes = {box.value: box for box in DeadLetterStore}
        if not colon or scheme not in boxes or not rest:
            raise InvalidValue("not a valid destination")
        box = boxes[scheme]
        match box:
            case DeadLetterStore.FILE:
                return DeadLetterDestination(box, _path(rest))
            case DeadLetterStore.SQS:
                return _queue(rest)
            case DeadLetterStore.KINESIS:
                return _stream(rest)

    return ValueKind(read, "file:PATH, sqs:QUEUE_URL, kinesis:STREAM or kinesis:STREAM_ARN")


def _path(text: str) -> str:
    if text.startswith("//") and not text.startswith("///"):
        raise InvalidValue("a file on another host; use file:PATH or file:///PATH")
    path = text[2:] if text.startswith("///") else text
    if "\0" in path or path.endswith("/"):
        raise InvalidValue("not the path of a file")
    return path


def _queue(text: str) -> DeadLetterDestination:
    address = endpoint().read(text)
    assert isinstance(address, str), "endpoint gives the address"
    parts = urlsplit(address)
    if not _QUEUE_PATH.fullmatch(parts.path):
        raise InvalidValue("not a queue URL, which ends in /ACCOUNT/NAME with an account of 12 digits")
    found = _REGION.search(parts.hostname or "")
    region_name = (found["new"] or found["old"]) if found else None
    return DeadLetterDestination(DeadLetterStore.SQS, address, region_name)


def _stream(text: str) -> DeadLetterDestination:
    if not text.startswith("arn:"):
        if not _STREAM_NAME.fullmatch(text):
            raise InvalidValue("not the name of a stream")
        return DeadLetterDestination(DeadLetterStore.KINESIS, text)
    arn = stream_arn().read(text)
    return DeadLetterDestination(DeadLetterStore.KINESIS, text, getattr(arn, "region_name", None))


FAILURE_POLICY: Final = Key(
    "childFailurePolicy",
    choice({policy.value: policy for policy in ChildFailurePolicy}),
    "failures.policy",
    "`RESTART`: a failed child is replaced; other shards are not affected. `EXIT`: the daemon shuts "
    "down gracefully with exit code 1, as the Java daemon does.",
    extension=True,
)
FAILURES_MOST: Final = Key(
    "childMaxFailures",
    whole_number(0, INT_MAX, "failures"),
    "failures.failures_most",
    "After this many failures in a row without progress, the lease is released and marked degraded so "
    "that another worker can try ([failures](failures.md)). 0: never.",
    extension=True,
)
POISON_POLICY: Final = Key(
    "poisonRecordPolicy",
    choice({policy.value: policy for policy in PoisonRecordPolicy}),
    "failures.poison",
    "What happens to a record that no child can process. `RETRY`: the daemon keeps restarting children "
    "before it. `DEADLETTER`: the daemon finds the record and stores it at `deadLetterDestination`. "
    "`SKIP`: the daemon finds the record and skips it ([failures](failures.md)).",
    extension=True,
)
POISON_TRIES: Final = Key(
    "poisonRecordMaxFailures",
    whole_number(1, INT_MAX, "failures"),
    "failures.poison_tries",
    "A record is set aside after this many children in a row fail on it alone.",
    extension=True,
)
DEAD_LETTERS: Final = Key(
    "deadLetterDestination",
    dead_letter_destination(),
    "failures.dead_letters",
    "Where dead letters go: a file (JSON lines, readable by its owner only), an SQS queue or a Kinesis "
    "stream.",
    default="none",
    extension=True,
)

FAILURE_KEYS: Final[tuple[Key, ...]] = (
    FAILURE_POLICY,
    FAILURES_MOST,
    Key(
        "childDegradedMillis",
        MILLISECONDS_OR_NONE,
        "failures.degraded_ms",
        "After a worker released a shard because of failures, it waits this long before it starts on "
        "that shard again.",
        extension=True,
    ),
    POISON_POLICY,
    POISON_TRIES,
    DEAD_LETTERS,
)
