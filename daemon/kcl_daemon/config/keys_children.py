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
