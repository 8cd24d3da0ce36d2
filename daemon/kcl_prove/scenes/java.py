"""The same tables, the same child program."""

from __future__ import annotations

from typing import Final

from kcl_prove.parts import Options
from kcl_prove.scenes.traffic import Play

MAIN_CLASS: Final = "software.amazon.kinesis.multilang.MultiLangDaemon"
_SPLIT_AT: Final = 0.25
_STOP_AT: Final = 0.6
# A leader of Java assigns every twenty seconds otherwise; ours must wait for it as long as Java's workers do.
PROPERTIES: Final = {
    "retrievalMode": "POLLING",
    "failoverTimeMillis": "10000",
    "leaderLeaseMillis": "12000",
    "leaderHeartbeatMillis": "3000",
    "shardSyncIntervalMillis": "3000",
    "leaseAssignmentIntervalMillis": "2000",
    "shutdownGraceMillis": "15000",
}


def left_out(options: Options) -> str:
    if options.java_classpath is None:
        return "needs --java CLASSPATH, with the jars of amazon-kinesis-client-multilang 3.x"
    if options.is_local:
        return "the Java daemon speaks HTTP/2 with Kinesis, the local endpoints HTTP/1.1"
    return ""


async def start(play: Play) -> None:
    classpath = play.stage.options.java_classpath
    assert classpath is not None, "left out without one"
    await play.fleet.start(program=("java", "-cp", classpath, MAIN_CLASS, "-p"), kind="java")
    await play.fleet.start()


async def work_side_by_side(play: Play) -> None:
    java = play.fleet.workers[0]
    for worker in play.fleet.running:
        if not await play.owned_by(worker):
            play.missed.append(f"{worker.name} had no shard when the records began")
    await play.at(_SPLIT_AT)
    await play.stream.split()
    await play.at(_STOP_AT)
    await play.fleet.stop(java)
    await play.taken_from(java)
