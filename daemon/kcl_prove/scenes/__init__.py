from __future__ import annotations

from typing import Final

from kcl_prove.parts import Usage
from kcl_prove.scenes import acts, fis, forms, java
from kcl_prove.scenes.traffic import RECORD_BYTES_MAX, Traffic
from kcl_prove.stage import Scene

LARGE_BYTES: Final = RECORD_BYTES_MAX - 1024
"""With its key it has at most 10 MiB, and so does a request."""
ON_DEMAND_SHARDS: Final = 4

SCENES: Final[tuple[Scene, ...]] = (
    Traffic("polling", "Records by polling, to several workers", after=forms.was_polled),
    Traffic(
        "fan-out",
        "Records by enhanced fan-out",
        actions=frozenset(
            f"kinesis:{name}"
            for name in ("DescribeStreamConsumer", "RegisterStreamConsumer", "SubscribeToShard")
        ),
        properties={"retrievalMode": "FANOUT"},
        after=forms.was_pushed,
    ),
    Traffic(
        "reshard",
        "Shards split and merge under traffic",
        acts.split_and_merge,
        frozenset({"kinesis:SplitShard", "kinesis:MergeShards"}),
        new_shards=3,
    ),
    Traffic("kill-worker", "A worker is killed (SIGKILL)", acts.kill_a_worker),
    Traffic("kill-leader", "The leader is killed (SIGKILL)", acts.kill_the_leader),
    Traffic("pause-worker", "A worker stands still past its leases, then goes on", acts.pause_a_worker),
    Traffic("rolling-deploy", "Workers are replaced one by one (SIGTERM)", acts.deploy_one_by_one),
    Traffic(
        "single-table",
        "One table for leases, workers and leader",
        is_single_table=True,
        after=forms.has_one_table,
    ),
    Traffic("large-records", "Records of 10 MiB", record_bytes=LARGE_BYTES, records_each_shard=2),
    Traffic(
        "glue",
        "Records with a schema of the AWS Glue Schema Registry",
        actions=frozenset(
            f"glue:{name}" for name in ("CreateRegistry", "CreateSchema", "GetSchemaVersion", "TagResource")
        ),
        properties={"retrievalMode": "POLLING", "schemaRegistry": "DECODE"},
        form=forms.with_schema,
        reason=forms.no_glue,
    ),
    Traffic(
        "on-demand",
        "An on-demand stream that gets twice its shards",
        forms.scale_up,
        frozenset({"kinesis:UpdateStreamMode", "kinesis:UpdateShardCount"}),
        is_on_demand=True,
        new_shards=ON_DEMAND_SHARDS * 3,
    ),
    Traffic(
        "java",
        "A Java worker beside one of ours",
        java.work_side_by_side,
        frozenset({"kinesis:SplitShard"}),
        java.PROPERTIES,
        new_shards=2,
        start=java.start,
        reason=java.left_out,
    ),
    Traffic(
        "fis",
        "Kinesis fails, by AWS Fault Injection Service",
        fis.make_kinesis_fail,
        fis.ACTIONS,
        extra=Usage(fis_action_minutes=len(fis.ACTION_NAMES) * fis.MINUTES),
        after=fis.calls_failed,
        reason=fis.left_out,
    ),
)
