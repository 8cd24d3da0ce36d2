"""Settings and properties of the bundled Spark client. `reading` collects `sparkConf.NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import (
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    ValueKind,
    check_port,
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
_MASTER: Final = name(
    r"local(\[(\*|[1-9][0-9]*)\])?|yarn|(spark|k8s)://.+",
    "local[*], local[N], spark://HOST:PORT, yarn or k8s://...",
)
_REMOTE: Final = name(r"sc://.+", "sc://HOST:PORT")
_HOST_AND_PORT: Final = name(r"(\[[0-9a-fA-F:.]+\]|[^\s:]+):[0-9]{1,5}", "HOST:PORT")
_SIZE: Final = name(r"[0-9]+[kmgtKMGT]", "a number and k, m, g or t, such as 2g")
_TRIGGER: Final = name(
    r"availableNow|[0-9]+(\.[0-9]+)? (milliseconds?|seconds?|minutes?|hours?)",
    "an interval such as 0.5 seconds, or availableNow",
)
_TRANSPORT: Final = choice({"LOCAL": "local", "SHARED": "shared", "INLINE": "inline"})
_PACKAGES: Final = ValueKind(not_blank, "GROUP:ARTIFACT:VERSION, separated by commas")
_PEM_FILE: Final = ValueKind(not_blank, "a PEM file")
_FOLDER: Final = ValueKind(not_blank, "a folder")
_FOLDER_OR_URI: Final = ValueKind(not_blank, "a folder, or with sparkTransport=shared a URI")


def _host_and_port(text: str) -> str:
    word = _HOST_AND_PORT.read(text)
    check_port(word.rpartition(":")[2])
    return word


_ADDRESS: Final = ValueKind(_host_and_port, _HOST_AND_PORT.allowed)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Without `pipeline` nothing else is used.

    The Spark client's `EngineOptions` have the same names, without `engine_`.
    """

    pipeline: str | None = ours("sparkPipeline", _PIPELINE, None)
    """Function whose Spark queries process the stream. Replaces `executableName`. See [Spark](spark.md)."""
    master: str = ours("sparkMaster", _MASTER, "local[*]")
    """Where Spark runs: locally in the engine with this many threads, or on a cluster with the engine as
    driver."""
    remote: str | None = ours("sparkRemote", _REMOTE, None)
    """Spark Connect server that runs the queries. It must see `sparkStateDir` and `sparkSpoolDir` under the
    same paths."""
    transport: str | None = ours(
        "sparkTransport",
        _TRANSPORT,
        None,
        shown="`local` for `local[*]`, `shared` for `sparkRemote`, else `inline`",
    )
    """How records reach the Spark workers: in local files, in a shared `sparkSpoolDir`, or inside the
    tasks."""
    engine: str | None = ours("sparkEngine", _ADDRESS, None)
    """Engine on another host that this host feeds over TLS. No engine is started here."""
    engine_listen: str | None = ours("sparkEngineListen", _ADDRESS, None, shown="nowhere")
    """Where the engine of this host accepts other hosts over TLS."""
    engine_token_file: str | None = ours("sparkEngineTokenFile", ValueKind(not_blank, "a file"), None)
    """File with the secret shared by an engine and the hosts that feed it: at least 16 random characters."""
    engine_certificate: str | None = ours("sparkEngineCertificate", _PEM_FILE, None)
    """Certificate of a listening engine, with its chain. It must contain the host name that others use."""
    engine_key: str | None = ours("sparkEngineKey", _PEM_FILE, None, shown="in the same file")
    """Private key of `sparkEngineCertificate`."""
    engine_authority: str | None = ours(
        "sparkEngineAuthority", _PEM_FILE, None, shown="the system's CA certificates"
    )
    """CA certificates for the engine of `sparkEngine`; the engine's own certificate if it is self-signed."""
    packages: str = ours("sparkPackages", _PACKAGES, "", shown="none")
    """Maven packages that Spark loads at start. `sparkConf.NAME` sets any other Spark setting."""
    driver_memory: str = ours("sparkDriverMemory", _SIZE, "1g")
    """Heap size of the Spark driver."""
    conf: tuple[tuple[str, str], ...] = ()
    state_dir: str | None = ours(
        "sparkStateDir", _FOLDER, None, shown="`APPLICATION-spark` in the daemon's directory"
    )
    """Folder of Spark's checkpoints. Must survive restarts; one per application and host."""
    spool_dir: str | None = ours("sparkSpoolDir", _FOLDER_OR_URI, None, shown="`spool` in the state folder")
    """Folder of records on their way to Spark. Need not survive restarts. Can be a URI (s3, gs, hdfs, file)
    with `sparkTransport=shared`."""
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
    """In one micro-batch, how much later records of other shards may have arrived than those of the shard
    furthest behind."""
    max_skew_wait_ms: int = ours("sparkMaxSkewWaitMillis", MILLISECONDS_OR_NONE, 60_000)
    """How long a shard that is behind and delivers nothing holds back the others. 0: no waiting."""
    checkpoint_interval_ms: int = ours("sparkCheckpointIntervalMillis", MILLISECONDS_OR_NONE, 5_000)
    """Minimum time between two checkpoints of a shard. There is always one at shard end and at shutdown."""
    drain_timeout_ms: int = ours("sparkDrainTimeoutMillis", MILLISECONDS, 60_000)
    """How long running micro-batches may take at shutdown. Raises `shutdownGraceMillis`."""
    on_lost_range: str = ours("sparkOnLostRange", choice({"FAIL": "fail", "SKIP": "skip"}), "fail")
    """What happens if a planned micro-batch needs records that are gone and whose shard is now leased
    elsewhere."""
    state_reset: bool = ours("sparkStateReset", truth(), default=False)
    """Whether to allow new state although the shards have checkpoints."""
    columns: str = ours("sparkColumns", choice({"KCL": "kcl", "AWS": "aws"}), "kcl")
    """Column names: those of this client, or those of the AWS connector."""

    @property
    def used_transport(self) -> str:
        if self.transport is not None:
            return self.transport
        if self.remote is not None:
            return "shared"
        return "local" if self.master.startswith("local") else "inline"
