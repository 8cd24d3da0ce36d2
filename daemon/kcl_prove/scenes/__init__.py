"""The scenes of a proof."""

from __future__ import annotations

from typing import Final

from kcl_prove.parts import Scene
from kcl_prove.scenes import acts
from kcl_prove.scenes.traffic import Traffic

SCENES: Final[tuple[Scene, ...]] = (
    Traffic("polling", "Records by polling, to several workers"),
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
)
