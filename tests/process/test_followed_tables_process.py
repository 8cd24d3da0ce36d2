"""Whole daemons that follow a DynamoDB table from one stream to the next, alone and among many streams."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kcl_daemon.leases.lease import StreamIdentity
from kcl_local.changes.stream import StreamsOptions
from tests.process.daemon import value_of, wait_until
from tests.process.test_changes_process import ITEMS, TABLE, Table, reading, table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import StreamSpecificationTypeDef

pytestmark = pytest.mark.timeout(300)


def switch(read: Table, *, on: bool) -> None:
    dynamodb = read.app.dynamodb
    if on:
        view: StreamSpecificationTypeDef = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        dynamodb.update_table(TableName=TABLE, StreamSpecification=view)
    else:
        dynamodb.update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})


def assert_none_lost(read: Table, most: int) -> None:
    assert sorted(read.versions()) == sorted(f"item-{number}" for number in range(ITEMS))
    for versions in read.versions().values():
        assert versions == list(range(1, most + 1)), "in order, none lost, none twice"


@pytest.mark.parametrize("position", ["LATEST", "TRIM_HORIZON"])
def test_a_stream_that_is_switched_off_and_on_again_is_followed(tmp_path: Path, position: str) -> None:
    settings: dict[str, object] = {
        "streamArn": "",
        "tableName.source": TABLE,
        "initialPositionInStream": position,
        "leasesRecoveryAuditorExecutionFrequencyMillis": 1000,
    }
    with table(tmp_path, StreamsOptions(shard_life_s=4.0)) as it, reading(it, settings) as daemon:
        daemon.wait_for("leases_created")
        daemon.wait_for("child_started", times=2)
        time.sleep(1.0)  # noqa: TID251 - until both readers stand at the end
        for most in (1, 2, 3):
            it.write(ITEMS)
            wait_until(it.is_all_there, f"version {most} is delivered")
            switch(it, on=False)
            if most == 2:  # the next stream comes when the one before is finished
                wait_until(
                    lambda: all(value_of(row, "checkpoint") == "SHARD_END" for row in it.app.rows().values()),
                    "all is finished",
                )
            switch(it, on=True)
        daemon.stop()
        assert_none_lost(it, 3)
        assert not [each for each in daemon.loud() if each["level"] != "warning"]


def test_among_many_streams_each_stream_of_the_table_has_its_own_identity(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "streamArn": "",
        "streamNames": "clicks",
        "tableName.source": TABLE,
        "retrievalMode": "POLLING",
        "initialPositionInStream": "TRIM_HORIZON",
        "leasesRecoveryAuditorExecutionFrequencyMillis": 1000,
        "streamListRefreshMillis": 1000,
    }
    with table(tmp_path, StreamsOptions()) as it:
        it.app.kinesis.create_stream(StreamName="clicks", ShardCount=1)
        arns = [it.model.stream(TABLE).arn]
        with reading(it, settings) as daemon:
            it.write(ITEMS)
            switch(it, on=False)
            switch(it, on=True)
            arns.append(it.model.stream(TABLE).arn)
            it.write(ITEMS)
            wait_until(it.is_all_there, "both versions are delivered")
            daemon.stop()
        assert_none_lost(it, 2)
        keys = {key.rpartition(":")[0] for key in it.app.rows() if "$" in key}
        assert keys == {str(StreamIdentity.of_arn(arn, 0)) for arn in arns}
