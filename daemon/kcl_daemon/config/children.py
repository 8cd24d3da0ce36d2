from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from kcl_daemon.config.dead_letters import DESTINATION, OVERFLOW, Destination, Overflow
from kcl_daemon.config.kinds import (
    INT_MAX,
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    InvalidValue,
    Key,
    ValueKind,
    choice,
    command,
    java,
    keys,
    member,
    name,
    ours,
    trimmed,
    truth,
    whole_number,
)
from kcl_daemon.leases.lease import StreamIdentity
from kcl_daemon.ports import LogLevel
from kcl_daemon.records.forms import ShardOrder

MAX_ID: Final = 2**32 - 2
"""To the kernel the next one means "no change": root's child stays root."""
_USER: Final = name(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?",
    f"USER or USER:GROUP, names or numbers up to {MAX_ID}",
)
_COMMAND: Final = command()
_LEVELS: Final[dict[str, LogLevel]] = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "ERROR": "error",
}
STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LANES_MOST: Final = 64
# Of the 48 MiB of records that a worker holds.
_WINDOW_BYTES_MOST: Final = 24 * 1024**2


class ChildProtocol(Enum):
    CURRENT = "CURRENT"
    KCL_1_8 = "KCL_1_8"


_PROTOCOL: Final = replace(
    choice(
        {"CURRENT": ChildProtocol.CURRENT, "KCL_1_8": ChildProtocol.KCL_1_8, "KCL_1_0": ChildProtocol.CURRENT}
    ),
    allowed=member(ChildProtocol).allowed,
)


def _user() -> ValueKind[str]:
    def read(text: str) -> str:
        word = _USER.read(text)
        for part in word.split(":"):
            if part.isdecimal() and int(part) > MAX_ID:
                raise InvalidValue(f"no user or group has the number {part}")
        return word

    return replace(_USER, read=read)


@dataclass(frozen=True, slots=True)
class ChildSettings:
    command: tuple[str, ...] = field(metadata=keys(Key("executableName", _COMMAND, required=True)))
    """The program and its arguments; one process runs per shard. Split at spaces only."""
    timeout_s: float | None = java(
        "timeoutInSeconds", whole_number(1, INT_MAX, "seconds"), None, shown="none: no limit"
    )
    """How long a child may take for one answer. Then it is replaced."""
    stuck_timeout_ms: int | None = ours("childStuckTimeoutMillis", MILLISECONDS, None, shown="none: no limit")
    """How long a child may work on one action without a new checkpoint. Then this child alone is replaced.
    Unlike `timeoutInSeconds`, a checkpoint that repeats an old position does not restart the timer, and time
    in which the lease table refuses checkpoints does not count."""
    shutdown_grace_ms: int = java("shutdownGraceMillis", MILLISECONDS_OR_NONE, 20_000)
    """How long the children may take to finish at shutdown. Java's default is 0, which loses the last
    checkpoint."""
    call_for_empty: bool = java("callProcessRecordsEvenForEmptyRecordList", truth(), default=False)
    """Whether children get empty batches."""
    backoff_first_ms: int = ours("childRestartBackoffMillis", MILLISECONDS, 500)
    """Pause before a failed child is restarted; doubles with each failure in a row."""
    backoff_most_ms: int = ours("childRestartBackoffMaxMillis", MILLISECONDS, 60_000)
    """Longest pause before a failed child is restarted."""
    exit_grace_ms: int = ours("childExitGraceMillis", MILLISECONDS_OR_NONE, 5_000)
    """How long a child may take to exit after its stdin is closed, and again after SIGTERM."""
    protocol: ChildProtocol = ours("childProtocol", _PROTOCOL, ChildProtocol.CURRENT)
    """Protocol of the children. `CURRENT`: KCL 2.x and 3.x. `KCL_1_8`: client libraries 1.x since 2017,
    `shutdown` at lease loss and shard end."""
    warn_after_ms: int | None = java(
        "logWarningForTaskAfterMillis", MILLISECONDS, None, shown="none: no warning"
    )
    """Logs a warning (`child_is_slow`) when a child needs longer for one action."""
    user: str | None = ours("childUser", _user(), None, shown="the daemon's")
    """User, and optionally group, of the children. Only if the daemon runs as root."""
    memory_limit_bytes: int | None = ours(
        "childMemoryLimitBytes", whole_number(1024**2, LONG_MAX, "bytes"), None, shown="the daemon's"
    )
    """Maximum address space of each child process (RLIMIT_AS). Node and Java reserve far more than they use.
    Linux only."""
    open_files_limit: int | None = ours(
        "childOpenFilesLimit", whole_number(16, INT_MAX, "files"), None, shown="the daemon's"
    )
    """Maximum number of open files of each child process (RLIMIT_NOFILE). Linux only."""
    processes_limit: int | None = ours(
        "childProcessesLimit", whole_number(1, INT_MAX, "processes"), None, shown="the daemon's"
    )
    """Maximum number of processes of the children's user, including its other programs (RLIMIT_NPROC; root is
    not limited). Linux only."""
    inherit_credentials: bool = ours("childInheritCredentials", truth(), default=True)
    """Whether children get the daemon's AWS credentials. If not, their environment has no `AWS_...` variables
    that are or lead to credentials and no headers for the metrics collector (`OTEL_EXPORTER_OTLP_HEADERS`),
    and their SDKs do not ask the instance for its role. Applies to Spark pipelines too, but not to sidecar
    containers. See [Security](security.md#children-and-credentials)."""
    preload: bool = ours("childPreload", truth(), default=False)
    """Whether one template process imports the program, and children are forked from it: each needs little
    memory and starts at once. For programs that use `kcl_client` or the
    [start protocol](protocol.md#preloading). See
    [Children that cost little](concurrency.md#children-that-cost-little)."""
    stderr_level: LogLevel = ours("childStderrLevel", choice(_LEVELS), "info", shown="INFO")
    """Level of the log events for a child's stderr (`child_stderr`). The Java daemon uses ERROR."""
    stderr_lines_per_s: int = ours("childStderrLinesPerSecond", whole_number(0, INT_MAX, "lines"), 200)
    """How many lines of a child's stderr are logged a second, on average of ten seconds, with 1 KiB each. What is more is left out
    and counted (`child_stderr_left_out`), so that a child in trouble does not fill the log. 0: no limit."""
    log_messages: bool = ours("childLogMessages", truth(), default=False)
    """Whether [`log` messages](protocol.md#log-messages) of children are logged (`child_log`). If not, they
    are stray output, as in Java."""
    is_relay: bool = False
    """Whether the children pass on what they are told to a helper of ours."""


class ChildFailurePolicy(Enum):
    RESTART = "RESTART"
    EXIT = "EXIT"


class PoisonRecordPolicy(Enum):
    RETRY = "RETRY"
    SKIP = "SKIP"
    DEADLETTER = "DEADLETTER"


@dataclass(frozen=True, slots=True)
class FailureSettings:
    policy: ChildFailurePolicy = ours(
        "childFailurePolicy", member(ChildFailurePolicy), ChildFailurePolicy.RESTART
    )
    """`RESTART`: a failed child is replaced; other shards are not affected. `EXIT`: the daemon shuts down
    gracefully with exit code 1, as the Java daemon does."""
    failures_most: int = ours("childMaxFailures", whole_number(0, INT_MAX, "failures"), 10)
    """After this many failures in a row without progress, the lease is released and marked degraded so that
    another worker can try ([failures](failures.md)). 0: never."""
    degraded_ms: int = ours("childDegradedMillis", MILLISECONDS_OR_NONE, 60_000)
    """After a worker released a shard because of failures, it waits this long before it starts on that shard
    again."""
    poison: PoisonRecordPolicy = ours(
        "poisonRecordPolicy", member(PoisonRecordPolicy), PoisonRecordPolicy.RETRY
    )
    """What happens to a record that no child can process. `RETRY`: the daemon keeps restarting children
    before it. `DEADLETTER`: the daemon finds the record and stores it at `deadLetterDestination`. `SKIP`: the
    daemon finds the record and skips it ([failures](failures.md))."""
    poison_tries: int = ours("poisonRecordMaxFailures", whole_number(1, INT_MAX, "failures"), 3)
    """A record is set aside after this many children in a row fail on it alone."""
    attempts: int | None = ours(
        "maxRecordAttempts", whole_number(1, INT_MAX, "attempts"), None, shown="none: without end"
    )
    """After so many failed deliveries of a record, also together with others, all records of the last delivery
    are set aside. It bounds the search for the record that children fail at. Needs `poisonRecordPolicy`
    `DEADLETTER` or `SKIP`."""
    max_age_ms: int | None = ours("maxRecordAgeMillis", MILLISECONDS, None, shown="none: of any age")
    """Records that arrived in the stream longer ago are not delivered: they are stored at
    `deadLetterDestination`, or, without one, skipped if `poisonRecordPolicy` is `SKIP`
    ([failures](failures.md#records-that-are-too-old))."""
    dead_letters: Destination | None = ours("deadLetterDestination", DESTINATION, None)
    """Where dead letters go: a file (JSON lines, readable by its owner only), an S3 bucket, an SQS queue, an
    SNS topic or a Kinesis stream. See [Dead letters](failures.md#dead-letters). Children may
    [reject records](failures.md#rejected-records) as soon as it is set."""
    dead_letter_overflow: Overflow | None = ours("deadLetterOverflow", OVERFLOW, None)
    """Where the data of letters go that are too large for the queue, topic or stream of `deadLetterDestination`.
    The letter then only says where its data are."""


@dataclass(frozen=True, slots=True)
class LaneCounts:
    default: int = 1
    of_streams: tuple[tuple[str, int], ...] = ()

    @property
    def most(self) -> int:
        return max(self.default, *(count for _, count in self.of_streams), 1)


def _lane_counts() -> ValueKind[LaneCounts]:
    number = whole_number(1, _LANES_MOST, "children")

    def read(text: str) -> LaneCounts:
        first, *others = text.split(",")
        of_streams = dict[str, int]()
        for each in others:
            stream, equals, count = each.partition("=")
            if not equals or not STREAM_NAME.fullmatch(trimmed(stream)):
                raise InvalidValue(f"{trimmed(each)!r:.100} is not STREAM=N")
            if trimmed(stream) in of_streams:
                raise InvalidValue(f"{trimmed(stream)} is given twice")
            of_streams[trimmed(stream)] = number.read(count)
        return LaneCounts(number.read(first), tuple(of_streams.items()))

    form = replace(number.form, pattern=rf"{number.form.pattern}\s*(,[\s\S]*)?")
    return ValueKind(
        read, f"{number.allowed}; then STREAM=N for other numbers, separated by commas", form=form
    )


@dataclass(frozen=True, slots=True)
class ConcurrencySettings:
    lanes: LaneCounts = ours("shardConcurrency", _lane_counts(), LaneCounts(), shown="1")
    """How many children work on one shard at the same time ([concurrency](concurrency.md)). Each gets the
    records of its partition keys, in order. With many streams a stream may have its own number:
    `1, orders=16`."""
    order: ShardOrder = ours("shardOrder", member(ShardOrder), ShardOrder.KEY)
    """With `shardConcurrency` above 1: `KEY` gives all records of a partition key to the same child, in
    order. `NONE` gives each record to the child with the fewest."""
    window_bytes: int = ours(
        "shardConcurrencyWindowBytes", whole_number(1024**2, _WINDOW_BYTES_MOST, "bytes"), 8 * 1024**2
    )
    """With `shardConcurrency` above 1: how many bytes of a shard's records are kept for its children at most,
    until they have checkpointed them. They count against the 48 MiB that a worker holds of all its shards."""
    remembers: bool = ours("shardConcurrencyRemembers", truth(), default=False)
    """With `shardConcurrency` above 1 and `shardOrder` `KEY`: what each child has checkpointed beyond the checkpoint of the
    shard is stored with each checkpoint and renewal (`daemonLanes`), so that little comes twice after the end of a worker."""

    def lanes_of(self, stream: StreamIdentity | None) -> int:
        of_table = None if stream is None else stream.of_table
        name = of_table.table if of_table is not None else "" if stream is None else stream.name
        return dict(self.lanes.of_streams).get(name, self.lanes.default)
