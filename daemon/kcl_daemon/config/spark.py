"""Settings and properties of the bundled Spark client. `reading` collects `sparkConf.NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import (
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    InvalidValue,
    Key,
    ValueKind,
    check_port,
    choice,
    name,
    trimmed,
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


def _address() -> ValueKind:
    def read(text: str) -> str:
        word = str(_HOST_AND_PORT.read(text))
        check_port(word.rpartition(":")[2])
        return word

    return ValueKind(read, _HOST_AND_PORT.allowed)


def _text(allowed: str) -> ValueKind:
    def read(text: str) -> str:
        word = trimmed(text)
        if not word:
            raise InvalidValue("empty; give a value or remove the line")
        return word

    return ValueKind(read, allowed)


SPARK_PIPELINE: Final = Key(
    "sparkPipeline",
    _PIPELINE,
    "spark.pipeline",
    "Function whose Spark queries process the stream. Replaces `executableName`. See [Spark](spark.md).",
    default="none",
    extension=True,
)
SPARK_MASTER: Final = Key(
    "sparkMaster",
    _MASTER,
    "spark.master",
    "Where Spark runs: locally in the engine with this many threads, or on a cluster with the engine as "
    "driver.",
    extension=True,
)
SPARK_REMOTE: Final = Key(
    "sparkRemote",
    _REMOTE,
    "spark.remote",
    "Spark Connect server that runs the queries. It must see `sparkStateDir` and `sparkSpoolDir` under "
    "the same paths.",
    default="none",
    extension=True,
)
SPARK_TRANSPORT: Final = Key(
    "sparkTransport",
    choice({"LOCAL": "local", "SHARED": "shared", "INLINE": "inline"}),
    "spark.transport",
    "How records reach the Spark workers: in local files, in a shared `sparkSpoolDir`, or inside the tasks.",
    default="`local` for `local[*]`, `shared` for `sparkRemote`, else `inline`",
    extension=True,
)
SPARK_ENGINE: Final = Key(
    "sparkEngine",
    _address(),
    "spark.engine",
    "Engine on another host that this host feeds over TLS. No engine is started here.",
    default="none",
    extension=True,
)
SPARK_ENGINE_LISTEN: Final = Key(
    "sparkEngineListen",
    _address(),
    "spark.engine_listen",
    "Where the engine of this host accepts other hosts over TLS.",
    default="nowhere",
    extension=True,
)
SPARK_ENGINE_TOKEN_FILE: Final = Key(
    "sparkEngineTokenFile",
    _text("a file"),
    "spark.engine_token_file",
    "File with the secret shared by an engine and the hosts that feed it: at least 16 random characters.",
    default="none",
    extension=True,
)
SPARK_ENGINE_CERTIFICATE: Final = Key(
    "sparkEngineCertificate",
    _text("a PEM file"),
    "spark.engine_certificate",
    "Certificate of a listening engine, with its chain. It must contain the host name that others use.",
    default="none",
    extension=True,
)
SPARK_ENGINE_KEY: Final = Key(
    "sparkEngineKey",
    _text("a PEM file"),
    "spark.engine_key",
    "Private key of `sparkEngineCertificate`.",
    default="in the same file",
    extension=True,
)
SPARK_ENGINE_AUTHORITY: Final = Key(
    "sparkEngineAuthority",
    _text("a PEM file"),
    "spark.engine_authority",
    "CA certificates for the engine of `sparkEngine`; the engine's own certificate if it is self-signed.",
    default="the system's CA certificates",
    extension=True,
)
SPARK_STATE_DIR: Final = Key(
    "sparkStateDir",
    _text("a folder"),
    "spark.state_dir",
    "Folder of Spark's checkpoints. Must survive restarts; one per application and host.",
    default="`APPLICATION-spark` in the daemon's directory",
    extension=True,
)
SPARK_SPOOL_DIR: Final = Key(
    "sparkSpoolDir",
    _text("a folder, or with sparkTransport=shared a URI"),
    "spark.spool_dir",
    "Folder of records on their way to Spark. Need not survive restarts. Can be a URI (s3, gs, hdfs, "
    "file) with `sparkTransport=shared`.",
    default="`spool` in the state folder",
    extension=True,
)
SPARK_TRIGGER: Final = Key(
    "sparkTrigger",
    _TRIGGER,
    "spark.trigger",
    "Time between two micro-batches, or `availableNow`: process all available records and stop with "
    "exit code 0.",
    extension=True,
)
SPARK_KEYS: Final[tuple[Key, ...]] = (
    SPARK_PIPELINE,
    SPARK_MASTER,
    SPARK_REMOTE,
    SPARK_TRANSPORT,
    SPARK_ENGINE,
    SPARK_ENGINE_LISTEN,
    SPARK_ENGINE_TOKEN_FILE,
    SPARK_ENGINE_CERTIFICATE,
    SPARK_ENGINE_KEY,
    SPARK_ENGINE_AUTHORITY,
    Key(
        "sparkPackages",
        _text("GROUP:ARTIFACT:VERSION, separated by commas"),
        "spark.packages",
        "Maven packages that Spark loads at start. `sparkConf.NAME` sets any other Spark setting.",
        default="none",
        extension=True,
    ),
    Key("sparkDriverMemory", _SIZE, "spark.driver_memory", "Heap size of the Spark driver.", extension=True),
    SPARK_STATE_DIR,
    SPARK_SPOOL_DIR,
    Key(
        "sparkSpoolMaxBytes",
        whole_number(1024**2, LONG_MAX, "bytes"),
        "spark.spool_max_bytes",
        "While this much is on its way to Spark, shards that have used their share wait.",
        extension=True,
    ),
    SPARK_TRIGGER,
    Key(
        "sparkMaxBytesPerTrigger",
        whole_number(1, LONG_MAX, "bytes"),
        "spark.max_bytes_per_trigger",
        "Maximum size of one micro-batch, which ends at the same arrival time in all shards.",
        extension=True,
    ),
    Key(
        "sparkMaxSkewMillis",
        MILLISECONDS_OR_NONE,
        "spark.max_skew_ms",
        "In one micro-batch, how much later records of other shards may have arrived than those of the "
        "shard furthest behind.",
        extension=True,
    ),
    Key(
        "sparkMaxSkewWaitMillis",
        MILLISECONDS_OR_NONE,
        "spark.max_skew_wait_ms",
        "How long a shard that is behind and delivers nothing holds back the others. 0: no waiting.",
        extension=True,
    ),
    Key(
        "sparkCheckpointIntervalMillis",
        MILLISECONDS_OR_NONE,
        "spark.checkpoint_interval_ms",
        "Minimum time between two checkpoints of a shard. There is always one at shard end and at shutdown.",
        extension=True,
    ),
    Key(
        "sparkDrainTimeoutMillis",
        MILLISECONDS,
        "spark.drain_timeout_ms",
        "How long running micro-batches may take at shutdown. Raises `shutdownGraceMillis`.",
        extension=True,
    ),
    Key(
        "sparkOnLostRange",
        choice({"FAIL": "fail", "SKIP": "skip"}),
        "spark.on_lost_range",
        "What happens if a planned micro-batch needs records that are gone and whose shard is now "
        "leased elsewhere.",
        extension=True,
    ),
    Key(
        "sparkStateReset",
        truth(),
        "spark.state_reset",
        "Whether to allow new state although the shards have checkpoints.",
        extension=True,
    ),
    Key(
        "sparkColumns",
        choice({"KCL": "kcl", "AWS": "aws"}),
        "spark.columns",
        "Column names: those of this client, or those of the AWS connector.",
        extension=True,
    ),
)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Without `pipeline` nothing else is used. The keys say what the fields mean.

    Args:
        transport: None: `local` on this machine, `shared` for `remote`, else `inline`.
        engine: None: this host has its own.
        engine_key: None: in the certificate's file.
        engine_authority: None: the system's.
        state_dir: None: named after the application, in the working directory.
        spool_dir: None: in the state folder.
        max_skew_wait_ms: 0: no waiting.
    """

    pipeline: str | None = None
    master: str = "local[*]"
    remote: str | None = None
    transport: str | None = None
    engine: str | None = None
    engine_listen: str | None = None
    engine_token_file: str | None = None
    engine_certificate: str | None = None
    engine_key: str | None = None
    engine_authority: str | None = None
    packages: str = ""
    driver_memory: str = "1g"
    conf: tuple[tuple[str, str], ...] = ()
    state_dir: str | None = None
    spool_dir: str | None = None
    spool_max_bytes: int = 1024**3
    trigger: str = "0.2 seconds"
    max_bytes_per_trigger: int = 64 * 1024**2
    max_skew_ms: int = 0
    max_skew_wait_ms: int = 60_000
    checkpoint_interval_ms: int = 5_000
    drain_timeout_ms: int = 60_000
    on_lost_range: str = "fail"
    state_reset: bool = False
    columns: str = "kcl"

    @property
    def used_transport(self) -> str:
        if self.transport is not None:
            return self.transport
        if self.remote is not None:
            return "shared"
        return "local" if self.master.startswith("local") else "inline"
