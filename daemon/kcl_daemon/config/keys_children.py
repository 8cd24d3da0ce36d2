"""The properties of the child processes: how long they may take, as whom they run, what they may use.

Pure data, part of the table in `keys`.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.key import MILLISECONDS, MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.kinds import INT_MAX, LONG_MAX, Kind, Refused, choice, name, truth, whole_number
from kcl_daemon.config.settings import ChildProtocol

ID_MOST: Final = 2**32 - 2
"""The largest number of a user or a group. The next one means "no change" to the kernel: a child of root's would be root."""

_USER: Final = name(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?",
    f"USER or USER:GROUP, names or numbers up to {ID_MOST}",
)


def _user() -> Kind:
    """User and group, by name or number; no number that the kernel takes for something else."""

    def read(text: str) -> object:
        word = str(_USER.read(text))
        for part in word.split(":"):
            if part.isdecimal() and int(part) > ID_MOST:
                raise Refused(f"no user or group has the number {part}")
        return word

    return Kind(read, _USER.allowed)


BACKOFF_FIRST: Final = Key(
    "childRestartBackoffMillis",
    MILLISECONDS,
    "child.backoff_first_ms",
    "Wait before a failed child is started again; doubles with each failure in a row.",
    extension=True,
)
BACKOFF_MOST: Final = Key(
    "childRestartBackoffMaxMillis",
    MILLISECONDS,
    "child.backoff_most_ms",
    "Longest wait before a failed child is started again.",
    extension=True,
)

CHILD_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "timeoutInSeconds",
        whole_number(1, INT_MAX, "seconds"),
        "child.timeout_s",
        "How long a child may take for one answer before it is replaced.",
        default="none: for ever",
    ),
    Key(
        "childStuckTimeoutMillis",
        MILLISECONDS,
        "child.stuck_timeout_ms",
        "How long a child may work on one action without a new checkpoint before it is replaced, alone. Unlike "
        "`timeoutInSeconds` not begun anew by a checkpoint that repeats an old position, and not counted while the lease "
        "table refuses its checkpoints.",
        default="none: for ever",
        extension=True,
    ),
    Key(
        "shutdownGraceMillis",
        MILLISECONDS_OR_NONE,
        "child.shutdown_grace_ms",
        "How long the children may take to finish when the daemon stops. Java's default is 0, which loses the last "
        "checkpoint.",
    ),
    Key(
        "callProcessRecordsEvenForEmptyRecordList",
        truth(),
        "child.call_for_empty",
        "Whether children are given empty batches.",
    ),
    BACKOFF_FIRST,
    BACKOFF_MOST,
    Key(
        "childExitGraceMillis",
        MILLISECONDS_OR_NONE,
        "child.exit_grace_ms",
        "How long a child may take to end after its stdin was closed, and again after SIGTERM.",
        extension=True,
    ),
    Key(
        "childProtocol",
        choice({generation.value: generation for generation in ChildProtocol}),
        "child.protocol",
        "Which protocol children speak: `CURRENT` is that of KCL 2.x and 3.x. `KCL_1_8`, of client libraries of 1.x since "
        "2017: `shutdown` for both ends. `KCL_1_0`, older ones: also the key `checkpoint`, and no `shutdownRequested`, so "
        "that a stop repeats what was not checkpointed.",
        extension=True,
    ),
    Key(
        "logWarningForTaskAfterMillis",
        MILLISECONDS,
        "child.warn_after_ms",
        "A warning in the log (`child_is_slow`) for an action that takes a child longer.",
        default="none: no warning",
    ),
    Key(
        "childUser",
        _user(),
        "child.user",
        "User, and group, that children run as. Only where the daemon runs as root.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childMemoryLimitBytes",
        whole_number(1024**2, LONG_MAX, "bytes"),
        "child.memory_limit_bytes",
        "Address space of each process of a child (RLIMIT_AS); more is refused to it. Node and Java reserve far more than "
        "they use. Linux only.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childOpenFilesLimit",
        whole_number(16, INT_MAX, "files"),
        "child.open_files_limit",
        "Open files of each process of a child (RLIMIT_NOFILE). Linux only.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childProcessesLimit",
        whole_number(1, INT_MAX, "processes"),
        "child.processes_limit",
        "Children start no further process where their user has so many, all programs of that user counted "
        "(RLIMIT_NPROC; root is not bound by it). Linux only.",
        default="the daemon's",
        extension=True,
    ),
    Key(
        "childInheritCredentials",
        truth(),
        "child.inherit_credentials",
        "Whether children find the daemon's AWS credentials. If not, variables `AWS_...` that are or lead to credentials "
        "are left out of their environment, and so are the headers for the metrics' collector "
        "(`OTEL_EXPORTER_OTLP_HEADERS`); their SDKs do not ask the instance for its role. Counts for a Spark "
        "pipeline too; not for containers beside the daemon. See [Security](security.md#children-and-credentials).",
        extension=True,
    ),
    Key(
        "childStderrLevel",
        choice({"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"}),
        "child.stderr_level",
        "Level of the log events (`child_stderr`) that a child's stderr becomes; the Java daemon has ERROR.",
        default="INFO",
        extension=True,
    ),
    Key(
        "childLogMessages",
        truth(),
        "child.log_messages",
        "Whether [`log` messages](protocol.md#log-messages) of children go to the log (`child_log`). Else they are stray "
        "output, as in Java.",
        extension=True,
    ),
)
