"""The properties of the bundled Spark client.

Pure data and the kinds of its values, part of the table in `keys`. `sparkConf.NAME` is no single property: `reading`
collects all that begin so.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.key import MILLISECONDS, MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.kinds import (
    LONG_MAX,
    Kind,
    Refused,
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


def _address() -> Kind:
    """Host and port; the port is one that there is."""

    def read(text: str) -> str:
        word = str(_HOST_AND_PORT.read(text))
        check_port(word.rpartition(":")[2])
        return word

    return Kind(read, _HOST_AND_PORT.allowed)


def _text(allowed: str) -> Kind:
    def read(text: str) -> str:
        word = trimmed(text)
        if not word:
            raise Refused("empty; give a value or take the line out")
        return word

    return Kind(read, allowed)


SPARK_PIPELINE: Final = Key(
    "sparkPipeline",
    _PIPELINE,
    "spark.pipeline",
    "The function whose Spark queries consume the stream; replaces `executableName`. See [Spark](spark.md).",
    default="none",
    extension=True,
)
SPARK_MASTER: Final = Key(
    "sparkMaster",
    _MASTER,
    "spark.master",
    "Where Spark runs: in the engine, on so many threads, or on a cluster whose driver is the engine.",
    extension=True,
)
SPARK_REMOTE: Final = Key(
    "sparkRemote",
    _REMOTE,
    "spark.remote",
    "A server of Spark Connect that runs the queries. Reaches `sparkStateDir` and `sparkSpoolDir` under the same names.",
    default="none",
    extension=True,
)
SPARK_TRANSPORT: Final = Key(
    "sparkTransport",
    choice({"LOCAL": "local", "SHARED": "shared", "INLINE": "inline"}),
    "spark.transport",
    "How records reach Spark's workers: by files of this machine, through `sparkSpoolDir` that all reach, or in the tasks.",
    default="`local` for `local[*]`, `shared` for `sparkRemote`, else `inline`",
    extension=True,
)
SPARK_ENGINE: Final = Key(
    "sparkEngine",
    _address(),
    "spark.engine",
    "The engine of another host that this host feeds, over TLS; then none is started here.",
    default="none",
    extension=True,
)
SPARK_ENGINE_LISTEN: Final = Key(
    "sparkEngineListen",
    _address(),
    "spark.engine_listen",
    "Where the engine of this host takes in other hosts, over TLS.",
    default="nowhere",
    extension=True,
)
SPARK_ENGINE_TOKEN_FILE: Final = Key(
    "sparkEngineTokenFile",
    _text("a file"),
    "spark.engine_token_file",
    "The secret that an engine and those who feed it have in common: 16 random characters or more.",
    default="none",
    extension=True,
)
SPARK_ENGINE_CERTIFICATE: Final = Key(
    "sparkEngineCertificate",
    _text("a PEM file"),
    "spark.engine_certificate",
    "The certificate of an engine that listens, with its chain; it holds the host name that others use.",
    default="none",
    extension=True,
)
SPARK_ENGINE_KEY: Final = Key(
    "sparkEngineKey",
    _text("a PEM file"),
    "spark.engine_key",
    "The private key of `sparkEngineCertificate`.",
    default="in the same file",
    extension=True,
)
SPARK_ENGINE_AUTHORITY: Final = Key(
    "sparkEngineAuthority",
    _text("a PEM file"),
    "spark.engine_authority",
    "The certificates that vouch for the engine that `sparkEngine` names; its own where it is self-signed.",
    default="those that the system trusts",
    extension=True,
)
SPARK_STATE_DIR: Final = Key(
    "sparkStateDir",
    _text("a folder"),
    "spark.state_dir",
    "Spark's checkpoints. Must survive restarts; one for each application and host.",
    default="`APPLICATION-spark` in the daemon's directory",
    extension=True,
)
SPARK_SPOOL_DIR: Final = Key(
    "sparkSpoolDir",
    _text("a folder, or with sparkTransport=shared a URI"),
    "spark.spool_dir",
    "Records on their way to Spark. Need not survive. A URI (s3, gs, hdfs, file) with `sparkTransport=shared`.",
    default="`spool` in the state folder",
    extension=True,
)
SPARK_TRIGGER: Final = Key(
    "sparkTrigger",
    _TRIGGER,
    "spark.trigger",
    "Time between two micro-batches, or `availableNow`: read everything there is and stop with exit code 0.",
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
        "Packages of Maven that Spark loads at its start. `sparkConf.NAME` gives any other setting of Spark.",
        default="none",
        extension=True,
    ),
    Key("sparkDriverMemory", _SIZE, "spark.driver_memory", "Heap of Spark's driver.", extension=True),
    SPARK_STATE_DIR,
    SPARK_SPOOL_DIR,
    Key(
        "sparkSpoolMaxBytes",
        whole_number(1024**2, LONG_MAX, "bytes"),
        "spark.spool_max_bytes",
        "Shards that have had their share wait while so much is on its way.",
        extension=True,
    ),
    SPARK_TRIGGER,
    Key(
        "sparkMaxBytesPerTrigger",
        whole_number(1, LONG_MAX, "bytes"),
        "spark.max_bytes_per_trigger",
        "Most of one micro-batch, which ends at one arrival time in all shards.",
        extension=True,
    ),
    Key(
        "sparkMaxSkewMillis",
        MILLISECONDS_OR_NONE,
        "spark.max_skew_ms",
        "How much later than the records of the shard furthest behind those of others in a micro-batch may have arrived.",
        extension=True,
    ),
    Key(
        "sparkMaxSkewWaitMillis",
        MILLISECONDS_OR_NONE,
        "spark.max_skew_wait_ms",
        "How long a shard that is behind and delivers nothing holds the others back; 0: nobody waits for anybody.",
        extension=True,
    ),
    Key(
        "sparkCheckpointIntervalMillis",
        MILLISECONDS_OR_NONE,
        "spark.checkpoint_interval_ms",
        "Least time between two checkpoints of a shard; there is always one at its end and at a stop.",
        extension=True,
    ),
    Key(
        "sparkDrainTimeoutMillis",
        MILLISECONDS,
        "spark.drain_timeout_ms",
        "How long the micro-batches under way may take when the daemon stops. Raises `shutdownGraceMillis`.",
        extension=True,
    ),
    Key(
        "sparkOnLostRange",
        choice({"FAIL": "fail", "SKIP": "skip"}),
        "spark.on_lost_range",
        "When a planned micro-batch needs records that are gone and whose shard is leased elsewhere now.",
        extension=True,
    ),
    Key(
        "sparkStateReset",
        truth(),
        "spark.state_reset",
        "Whether new state may begin although the shards have checkpoints.",
        extension=True,
    ),
    Key(
        "sparkColumns",
        choice({"KCL": "kcl", "AWS": "aws"}),
        "spark.columns",
        "Names of the columns: ours, or those of the AWS connector.",
        extension=True,
    ),
)
