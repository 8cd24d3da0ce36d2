"""What a shard may wait for. Pure values, known to those who wait and to those who tell of it."""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """What a shard that makes no progress waits for; every one of them has its own limit and its own advice."""

    STARTING = "starting"
    CHILD = "child"
    RESTART = "restart"
    KINESIS = "kinesis"
    DYNAMODB = "dynamodb"
    PARENT = "parent"
    STREAM = "stream"
    LEASE = "lease"
    NOTHING_NEW = "nothing new"
