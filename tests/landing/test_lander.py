"""The lander over real sockets: what is written, what is checkpointed, and what is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcl_landing.log import Format
from tests.landing.daemon import BASE_MS, Given, ShardOfDaemon, given
from tests.landing.landers import Landed, LanderThread, formats, options, until


@formats
@pytest.mark.parametrize("frame", [True, False])
def test_records_are_landed_as_they_were_given(tmp_path: Path, file_format: Format, frame: bool) -> None:
    chosen = options(tmp_path, format=file_format, window_ms=1)
    records = [
        Given(10, b"\x00\xff", key="schl\u00fcssel"),
        Given(11, b"", sub=0, arrival_ms=None),
        Given(11, b"b", sub=1, arrival_ms=BASE_MS + 1),
    ]
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        assert daemon.initialize() == (-1, 0)
        daemon.give(records, frame=frame)
        daemon.shut_down()
        assert daemon.checkpoint == (11, 1)
    rows = Landed.at(chosen).rows()
    assert [(each["data"], each["partition_key"]) for each in rows] == [
        (each.data, each.key) for each in records
    ]
    assert [(int(each["sequence_number"]), each["sub_sequence_number"]) for each in rows] == [
        each.where for each in records
    ]
    assert {(each["stream"], each["shard_id"]) for each in rows} == {("words", "shardId-000000000000")}
    arrivals = [each["approximate_arrival_timestamp"] for each in rows]
    assert [each and round(each.timestamp() * 1000) for each in arrivals] == [BASE_MS, None, BASE_MS + 1]


def test_a_window_ends_by_itself_and_its_end_is_checkpointed(tmp_path: Path) -> None:
    chosen = options(tmp_path, window_ms=200)
    with LanderThread(chosen) as lander, ShardOfDaemon(lander.socket) as daemon:
        daemon.initialize()
        daemon.give(given(1, 3))
        assert daemon.checkpoints == []
        (said,) = daemon.listen(5)
        assert (said["action"], daemon.checkpoints) == ("checkpoint", [(3, 0)])
        daemon.give(given(4, 5))
        until(lambda: Landed.at(chosen).numbers() == [1, 2, 3, 4, 5])
        daemon.give(given(6, 6))  # the request crosses this action, and its answer comes within it
        daemon.shut_down()
        assert daemon.checkpoints[-1] == (6, 0)
    assert len(Landed.at(chosen).entries) == 3
