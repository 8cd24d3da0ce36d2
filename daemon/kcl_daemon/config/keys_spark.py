"""The properties of the bundled Spark client.

Pure data and the kinds of its values, part of the table in `keys`. `sparkConf.NAME` is no single property: `reading`
collects all that begin so.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.key import MILLISECONDS, MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.kinds import LONG_MAX, Kind, Refused, choice, name, trimmed, truth, whole_number

CONF_PREFIX: Final = "sparkConf."
_PIPELINE: Final = name(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*", "module:function"
)
_MASTER: Final = name(r"local(\[(\*|[1-9][0-9]*)\])?", "local[*] or local[N]")
_SIZE: Final = name(r"[0-9]+[kmgtKMGT]", "a number and k, m, g or t, such as 2g")
_TRIGGER: Final = name(
    r"availableNow|[0-9]+(\.[0-9]+)? (milliseconds?|seconds?|minutes?|hours?)",
    "an interval such as 0.5 seconds, or availableNow",
)


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
SPARK_KEYS: Final[tuple[Key, ...]] = (
    SPARK_PIPELINE,
    Key(
        "sparkMaster",
        _MASTER,
        "spark.master",
        "Where Spark runs: in the engine, on so many threads. Clusters are not supported yet.",
        extension=True,
    ),
    Key(
        "sparkPackages",
        _text("GROUP:ARTIFACT:VERSION, separated by commas"),
        "spark.packages",
        "Packages of Maven that Spark loads at its start. `sparkConf.NAME` gives any other setting of Spark.",
        default="none",
        extension=True,
    ),
    Key("sparkDriverMemory", _SIZE, "spark.driver_memory", "Heap of Spark's driver.", extension=True),
    Key(
        "sparkStateDir",
        _text("a folder"),
        "spark.state_dir",
        "Spark's checkpoints. Must survive restarts; one for each application and host.",
        default="`APPLICATION-spark` in the daemon's directory",
        extension=True,
    ),
    Key(
        "sparkSpoolDir",
        _text("a folder"),
        "spark.spool_dir",
        "Records on their way to Spark. Need not survive.",
        default="`spool` in the state folder",
        extension=True,
    ),
    Key(
        "sparkSpoolMaxBytes",
        whole_number(1024**2, LONG_MAX, "bytes"),
        "spark.spool_max_bytes",
        "Shards that have had their share wait while so much is on its way.",
        extension=True,
    ),
    Key(
        "sparkTrigger",
        _TRIGGER,
        "spark.trigger",
        "Time between two micro-batches, or `availableNow`: read everything there is and stop with exit code 0.",
        extension=True,
    ),
    Key(
        "sparkMaxBytesPerTrigger",
        whole_number(1, LONG_MAX, "bytes"),
        "spark.max_bytes_per_trigger",
        "Most of one micro-batch, shared fairly by the shards.",
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
