from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import (
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    SOMETHING,
    Form,
    InvalidValue,
    ValueKind,
    choice,
    name,
    not_blank,
    ours,
    truth,
    whole_number,
)

CONF_PREFIX: Final = "sparkConf."
_PIPELINE: Final = name(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*", "module:function"
)
_LOCAL: Final = name(r"local(\[(\*|[1-9][0-9]*)\])?", "local[*] or local[N]")
_ELSEWHERE: Final = (
    "a Spark elsewhere reads the landing log: set landing = FOLDER_OR_URI, and start the pipeline with kcl-daemon "
    "spark-submit"
)
_SIZE: Final = name(r"[0-9]+[kmgtKMGT]", "a number and k, m, g or t, such as 2g")
_TRIGGER: Final = name(
    r"availableNow|[0-9]+(\.[0-9]+)? (milliseconds?|seconds?|minutes?|hours?)",
    "an interval such as 0.5 seconds, or availableNow",
)
_PACKAGES: Final = ValueKind(not_blank, "GROUP:ARTIFACT:VERSION, separated by commas", form=Form(SOMETHING))
_FOLDER: Final = ValueKind(not_blank, "a folder", form=Form(SOMETHING))
REMOVED: Final = {
    **dict.fromkeys(
        (
            *("sparkRemote", "sparkTransport", "sparkEngine", "sparkEngineListen", "sparkEngineTokenFile"),
            *("sparkEngineCertificate", "sparkEngineKey", "sparkEngineAuthority"),
        ),
        f"is gone; {_ELSEWHERE}",
    ),
    "sparkOnLostRange": "is gone: what has moved to another host is left to that host; remove this line",
}


def _master(text: str) -> str:
    if not text.strip().startswith("local"):
        raise InvalidValue(f"the engine runs Spark beside the daemon; {_ELSEWHERE}")
    return _LOCAL.read(text)


def _folder(text: str) -> str:
    if "://" in text:
        raise InvalidValue(f"a URI; the spool is a folder of this machine; {_ELSEWHERE}")
    return not_blank(text)


_MASTER: Final = ValueKind(_master, _LOCAL.allowed, form=_LOCAL.form)
_SPOOL: Final = ValueKind(_folder, "a folder", form=Form(SOMETHING))


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """`kcl_spark`'s `EngineOptions` have the same names."""

    pipeline: str | None = ours("sparkPipeline", _PIPELINE, None)
    """Function whose Spark queries process the stream. Replaces `executableName`. See [Spark](spark.md)."""
    master: str = ours("sparkMaster", _MASTER, "local[*]")
    """How many threads Spark has in the engine. Spark elsewhere reads the landing log: [Spark](spark.md)."""
    packages: str = ours("sparkPackages", _PACKAGES, "", shown="none")
    """Maven packages that Spark loads at start. `sparkConf.NAME` sets any other Spark setting."""
    driver_memory: str = ours("sparkDriverMemory", _SIZE, "1g")
    """Heap size of the Spark driver."""
    conf: tuple[tuple[str, str], ...] = ()
    state_dir: str | None = ours(
        "sparkStateDir", _FOLDER, None, shown="`APPLICATION-spark` in the daemon's directory"
    )
    """Folder of Spark's checkpoints. Must survive restarts; one per application and host."""
    spool_dir: str | None = ours("sparkSpoolDir", _SPOOL, None, shown="`spool` in the state folder")
    """Folder of records on their way to Spark. Need not survive restarts."""
    spool_max_bytes: int = ours("sparkSpoolMaxBytes", whole_number(1024**2, LONG_MAX, "bytes"), 1024**3)
    """While this much is on its way to Spark, shards that have used their share wait."""
    trigger: str = ours("sparkTrigger", _TRIGGER, "0.2 seconds")
    """Time between two micro-batches, or `availableNow`: process all available records and stop with exit
    code 0."""
    max_bytes_per_trigger: int = ours(
        "sparkMaxBytesPerTrigger", whole_number(1, LONG_MAX, "bytes"), 64 * 1024**2
    )
    """Maximum size of one micro-batch, which ends at the same arrival time in all shards."""
    max_skew_ms: int = ours("sparkMaxSkewMillis", MILLISECONDS_OR_NONE, 0)
    """How much later records of other shards may have arrived than those of the shard furthest behind. At the tip
    at least 10 s."""
    max_skew_wait_ms: int = ours("sparkMaxSkewWaitMillis", MILLISECONDS_OR_NONE, 60_000)
    """How long a shard that delivers nothing, or has left, holds back the others. 0: no waiting."""
    checkpoint_interval_ms: int = ours("sparkCheckpointIntervalMillis", MILLISECONDS_OR_NONE, 5_000)
    """Minimum time between two checkpoints of a shard. There is always one at shard end and at shutdown."""
    drain_timeout_ms: int = ours("sparkDrainTimeoutMillis", MILLISECONDS, 60_000)
    """How long running micro-batches may take at shutdown. Raises `shutdownGraceMillis`."""
    state_reset: bool = ours("sparkStateReset", truth(), default=False)
    """Whether to allow new state although the shards have checkpoints."""
    columns: str = ours("sparkColumns", choice({"KCL": "kcl", "AWS": "aws"}), "kcl")
    """Column names: those of this client, or those of the AWS connector."""
