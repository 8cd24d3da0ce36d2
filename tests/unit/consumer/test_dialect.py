"""What children of each generation are told."""

from __future__ import annotations

import json

import pytest

from kcl_daemon.config.children import ChildProtocol
from kcl_daemon.consumer.connection import Dialect
from kcl_protocol import encode
from kcl_protocol.messages import CheckpointAnswer, LeaseLost, ShardEnded, Shutdown, ShutdownRequested

ANSWER = CheckpointAnswer("17", None, "ThrottlingException")


def test_the_protocol_of_today_knows_two_ends() -> None:
    dialect = Dialect(ChildProtocol.CURRENT)
    assert (dialect.shard_ended, dialect.lease_lost) == (ShardEnded(), LeaseLost())
    assert dialect.shutdown_requested == ShutdownRequested()
    assert dialect.answer(ANSWER) == encode(ANSWER)


@pytest.mark.parametrize("generation", [ChildProtocol.KCL_1_8, ChildProtocol.KCL_1_0])
def test_before_2_0_both_ends_were_shutdown_with_a_reason(generation: ChildProtocol) -> None:
    dialect = Dialect(generation)
    assert encode(dialect.shard_ended) == b'{"action":"shutdown","reason":"TERMINATE"}\n'
    assert encode(dialect.lease_lost) == b'{"action":"shutdown","reason":"ZOMBIE"}\n'
    assert dialect.lease_lost == Shutdown("ZOMBIE")


def test_before_1_8_nobody_was_asked_to_stop_and_the_position_had_another_name() -> None:
    assert Dialect(ChildProtocol.KCL_1_8).shutdown_requested == ShutdownRequested()
    assert Dialect(ChildProtocol.KCL_1_8).answer(ANSWER) == encode(ANSWER)
    dialect = Dialect(ChildProtocol.KCL_1_0)
    assert dialect.shutdown_requested is None
    line = dialect.answer(ANSWER)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "action": "checkpoint",
        "checkpoint": "17",
        "sequenceNumber": "17",
        "subSequenceNumber": None,
        "error": "ThrottlingException",
    }


@pytest.mark.parametrize("generation", list(ChildProtocol))
def test_a_position_that_is_no_text_is_repeated_as_it_came(generation: ChildProtocol) -> None:
    line = Dialect(generation).answer(CheckpointAnswer("\ud800", None, "IllegalArgumentException"))
    assert line.isascii()
    assert json.loads(line)["sequenceNumber"] == "\ud800"
