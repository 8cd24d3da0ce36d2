"""The scenarios of many streams in one application.

Owns their draws; `scenarios` lists them with the others. Knows nothing of how a plan is carried out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.streams import FormerStreams, StreamsSettings
from kcl_daemon.shards.lineage import StartAt
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards
from tests.simulator.plans.plan import Epoch, Event, Plan, Stop, StreamAppears, StreamDisappears

# A stream that appears is seen at the next look at the list; then come the leader's next looks.
_BOUND_S: Final = 90.0
_SHARDS: Final = (1, 1, 1, 2, 2, 3, 5, 8)
FOREIGN_EPOCHS: Final = tuple(each for each in Epoch if each is not Epoch.NOBODY)


def many_streams(draw: Draw) -> Plan:
    """Dozens of streams of one to eight shards that come and go, under the same names too, while workers die."""
    chance = draw.chance
    plan = draw.plan(faults_s=150.0, bound_s=_BOUND_S, shards=(1, 3))
    names = tuple(f"stream-{number:02d}" for number in range(chance.between(12, 36)))

    def change() -> Event:
        number = chance.between(1, len(names) - 1)  # the first one stays, for splits and merges
        gone = chance.happens(0.4)
        return StreamDisappears(number) if gone else StreamAppears(number, chance.pick(_SHARDS))

    return replace(
        plan,
        streams=names,
        streams_settings=StreamsSettings(
            name_filter=chance.pick((None, "stream-*")),
            refresh_ms=chance.pick((2_000, 10_000, 20_000)),
            former=chance.pick((FormerStreams.KEEP, FormerStreams.DELETE_ALL)),
            former_wait_s=chance.pick((10.0, 1e6)),
        ),
        records_per_s=min(plan.records_per_s, 6.0),
        backlog=min(plan.backlog, 200),
        events=(
            *draw.arrivals(draw.workers(2, 4)),
            *draw.some(change, count=(10, 40), between_s=(5.0, 145.0)),
            *reshards(draw, (0, 6)),
            *draw.some(
                lambda: draw.kill(0.5, 5.0) if chance.happens(0.7) else Stop(draw.target(), 3.0),
                count=(1, 4),
                between_s=(10.0, 145.0),
            ),
        ),
        dynamodb=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
        kinesis=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
    )


def foreign_epochs(draw: Draw) -> Plan:
    """A Java program has read the streams before, under epochs of its own; no record and no checkpoint is lost."""
    chance = draw.chance
    plan = draw.plan(faults_s=150.0, bound_s=_BOUND_S, shards=(1, 4))
    names = tuple(f"stream-{number:02d}" for number in range(chance.between(4, 12)))
    from_latest = chance.happens(0.3)
    epochs = [each for each in Epoch if not (from_latest and each is Epoch.NOBODY)]

    def change() -> Event:
        number = chance.between(1, len(names) - 1)  # the first one stays, for splits and merges
        gone = chance.happens(0.5)
        return StreamDisappears(number) if gone else StreamAppears(number, chance.pick(_SHARDS))

    return replace(
        plan,
        streams=names,
        streams_settings=StreamsSettings(
            name_filter=chance.pick((None, "stream-*")),
            refresh_ms=chance.pick((2_000, 10_000, 20_000)),
            former=chance.pick((FormerStreams.KEEP, FormerStreams.DELETE_ALL)),
            former_wait_s=chance.pick((10.0, 1e6)),
        ),
        java_epochs=tuple(chance.pick(tuple(epochs)) for _ in names),
        # A stream that is new begins at the latest record then, and nobody knows which that was.
        start_at=StartAt.LATEST if from_latest else StartAt.TRIM_HORIZON,
        records_per_s=min(plan.records_per_s, 6.0),
        backlog=chance.between(300, 600),
        events=(
            *draw.arrivals(draw.workers(1, 4)),
            *([] if from_latest else draw.some(change, count=(2, 12), between_s=(40.0, 145.0))),
            *reshards(draw, (0, 4)),
            *draw.some(
                lambda: draw.kill(0.5, 5.0) if chance.happens(0.7) else Stop(draw.target(), 3.0),
                count=(0, 4),
                between_s=(1.0, 145.0),
            ),
        ),
        dynamodb=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
        kinesis=mixed_trouble(chance, worst=chance.pick((0.0, 0.02))),
    )


def streams_by_hundreds(draw: Draw) -> Plan:
    """A hundred streams, now and then three hundred, that appear and disappear while workers die and stop."""
    chance = draw.chance
    streams = chance.pick((100, 100, 100, 300))
    plan = draw.long_plan(faults_s=80.0, bound_s=_BOUND_S, shards=(1, 2))

    def change() -> Event:
        number = chance.between(1, streams - 1)
        gone = chance.happens(0.4)
        return StreamDisappears(number) if gone else StreamAppears(number, chance.pick(_SHARDS))

    return replace(
        plan,
        streams=tuple(f"stream-{number:03d}" for number in range(streams)),
        streams_settings=StreamsSettings(
            name_filter="stream-*",
            refresh_ms=chance.pick((2_000, 10_000, 20_000)),
            former=chance.pick((FormerStreams.KEEP, FormerStreams.DELETE_ALL)),
            former_wait_s=chance.pick((10.0, 1e6)),
        ),
        records_per_s=30.0,
        backlog=min(plan.backlog, 600),
        events=(
            *draw.arrivals(draw.workers(3, 4)),
            *draw.some(change, count=(streams // 2, streams), between_s=(2.0, 75.0)),
            *reshards(draw, (0, 3)),
            *draw.some(
                lambda: draw.kill(0.5, 5.0) if chance.happens(0.6) else Stop(draw.target(), 3.0),
                count=(1, 3),
                between_s=(10.0, 75.0),
            ),
        ),
    )
