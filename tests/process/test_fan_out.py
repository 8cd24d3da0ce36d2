"""Enhanced fan-out with the real daemon: the mode that a plain file means, breaks in the middle of frames, resharding."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
QUICK: Final = {"failoverTimeMillis": FAILOVER_MS}
FIRST: Final = "shardId-000000000000"


def order_fault(local: Local, **fault: object) -> None:
    request = urllib.request.Request(
        f"{local.kinesis_url}/_local/faults", data=json.dumps(fault).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 204


def calls(local: Local) -> dict[str, int]:
    with urllib.request.urlopen(f"{local.kinesis_url}/_local/calls", timeout=60) as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


def put_and_wait(app: Application, times: int, *, but: str = "") -> None:
    """Write to all open shards and wait for it, so many times; one of those that were written to has ended."""
    for _ in range(times):
        app.put(5)
        app.wait_done(set(app.last_written) - {but}, within_s=90.0)


def test_shards_are_subscribed_to_through_cuts_and_a_split(local: Local, tmp_path: Path) -> None:
    before = calls(local).get("GetRecords", 0)
    with application(local, tmp_path, "pushed", shards=2) as app:
        app.put(20)
        for kind in ("cut", "short", "corrupt"):
            order_fault(local, operation="SubscribeToShard", fault=kind, event=1)
        with app.daemon(CAREFUL, QUICK) as daemon:
            daemon.wait_for("consumer_registered")
            put_and_wait(app, 3)
            app.kinesis.split_shard(StreamName="pushed", ShardToSplit=FIRST, NewStartingHashKey="7")
            # Not that there are four: the one that was split may be finished and cleared away by now.
            wait_until(lambda: len(app.rows().keys() - {FIRST}) == 3, "the child shards have leases")
            put_and_wait(app, 2, but=FIRST)
            assert daemon.named("subscription_broken")
            assert not daemon.named("fan_out_impossible")
            daemon.stop()
        app.assert_account(repeated=0)
    assert calls(local).get("GetRecords", 0) == before, "nothing was polled"


def test_a_second_run_finds_the_consumer_of_the_first(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "found-again", shards=1) as app:
        for event in ("consumer_registered", "consumer_found"):
            app.put(3)
            with app.daemon(CAREFUL, {**QUICK, "retrievalMode": "FANOUT"}) as daemon:
                daemon.wait_for(event)
                app.wait_done()
                daemon.stop()
                assert daemon.loud() == []
        app.assert_account(repeated=0)


def test_shards_are_polled_where_the_stream_has_no_room_for_a_consumer(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "full", shards=1) as app:
        arn = app.kinesis.describe_stream_summary(StreamName="full")["StreamDescriptionSummary"]["StreamARN"]
        for number in range(20):
            app.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName=f"other-{number}")
        app.put(3)
        settings = {
            **QUICK,
            "fanoutFallbackToPolling": "true",
            "fanoutConfig.registerStreamConsumerRetries": 2,
            "fanoutConfig.retryBackoffMillis": 50,
        }
        with app.daemon(CAREFUL, settings) as daemon:
            daemon.wait_for("polling_instead_of_fan_out")
            app.wait_done()
            daemon.stop()
        app.assert_account(repeated=0)
