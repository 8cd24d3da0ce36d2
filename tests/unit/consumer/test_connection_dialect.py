"""How the end of a shard and a lost lease are said to children of each generation."""

from __future__ import annotations

from kcl_daemon.config.children import ChildProtocol
from kcl_daemon.consumer.connection import lease_lost, shard_ended
from kcl_protocol.codec import encode
from kcl_protocol.messages import LeaseLost, ShardEnded


def test_the_protocol_of_today_knows_two_ends() -> None:
    current = ChildProtocol.CURRENT
    assert (shard_ended(current), lease_lost(current)) == (ShardEnded(), LeaseLost())


def test_before_2_0_both_ends_were_shutdown_with_a_reason() -> None:
    old = ChildProtocol.KCL_1_8
    assert encode(shard_ended(old)) == b'{"action":"shutdown","reason":"TERMINATE"}\n'
    assert encode(lease_lost(old)) == b'{"action":"shutdown","reason":"ZOMBIE"}\n'
