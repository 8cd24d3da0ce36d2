"""What `tail` shows of shards that are read at the same time."""

from __future__ import annotations

import base64

import anyio
import pytest

from kcl_daemon.cli.stream.content import Opener
from kcl_daemon.cli.stream.tail import Screen, TailForm
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.records.content import SeenRecord
from kcl_daemon.records.payload import AnyRecord, raw_record
from kcl_protocol.messages import Record
from tests.simulator.loop import run_virtual

_FORM = TailForm(None, None, frozenset(), as_json=True, long=False, most=None)


class SlowOpener(Opener):
    """A registry of schemas answers after a while."""

    def __init__(self) -> None: ...

    async def opened(self, shard_id: str, record: AnyRecord) -> SeenRecord:
        await anyio.sleep(1)
        return SeenRecord(shard_id, record.sequence_number, 0, "key", 0, b"data")


def records(count: int) -> list[AnyRecord]:
    data = base64.b64encode(b"data").decode()
    return [raw_record(Record(data, "key", str(number), 0)) for number in range(count)]


def test_two_shards_together_show_no_more_records_than_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    async def show() -> int:
        screen = Screen(_FORM, SlowOpener(), 100)
        async with anyio.create_task_group() as group:
            for name in ("shardId-0", "shardId-1"):
                group.start_soon(screen.show, ShardId(name), records(90))
        await screen.show(ShardId("shardId-2"), records(3))
        assert screen.full.cancel_called
        return screen.shown

    assert run_virtual(show) == 100
    assert len(capsys.readouterr().out.splitlines()) == 100
