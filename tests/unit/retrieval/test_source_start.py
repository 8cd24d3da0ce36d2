"""Where reading begins, also for the second child of a shard that has no checkpoint yet."""

from __future__ import annotations

import pytest

from kcl_daemon.ports import IteratorKind, ReadFrom
from kcl_daemon.retrieval.source import StartMemory, read_from
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber


def test_a_sentinel_is_read_with_the_iterator_of_its_kind() -> None:
    assert read_from(TRIM_HORIZON, StartMemory(), None) == ReadFrom(IteratorKind.TRIM_HORIZON)
    assert read_from(LATEST, StartMemory(), None) == ReadFrom(IteratorKind.LATEST)
    assert read_from(AT_TIMESTAMP, StartMemory(), 5.0) == ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=5.0)


def test_a_lease_at_a_timestamp_that_nobody_configured_loses_nothing() -> None:
    assert read_from(AT_TIMESTAMP, StartMemory(), None) == ReadFrom(IteratorKind.TRIM_HORIZON)


def test_a_checkpointed_record_is_read_again_because_its_aggregate_may_go_on() -> None:
    assert read_from(ExtendedSequenceNumber("77", 3), StartMemory("5"), None) == ReadFrom(
        IteratorKind.AT_SEQUENCE_NUMBER, sequence_number="77"
    )


def test_a_child_that_died_before_its_first_checkpoint_costs_no_record() -> None:
    # KCL asks for LATEST again here and jumps over what the dead child was given.
    assert read_from(LATEST, StartMemory("42"), None) == ReadFrom(
        IteratorKind.AT_SEQUENCE_NUMBER, sequence_number="42"
    )


def test_a_finished_shard_has_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="finished"):
        read_from(SHARD_END, StartMemory(), None)
