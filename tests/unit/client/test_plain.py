"""Driving a coroutine without a loop, and what is refused before that."""

from __future__ import annotations

import asyncio  # noqa: TID251 - a coroutine that suspends

import pytest

from kcl_client import RecordProcessor, run
from kcl_client._processor import complete


async def answer() -> int:
    return 42


async def suspended() -> None:
    await asyncio.sleep(0)


def test_the_result_of_a_coroutine_that_never_waits_is_the_callers() -> None:
    assert complete(answer()) == 42


def test_a_coroutine_that_waits_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="must not suspend"):
        complete(suspended())


@pytest.mark.parametrize("thing", [RecordProcessor, object()])
def test_run_wants_an_instance_of_a_processor_and_touches_nothing_before(thing: RecordProcessor) -> None:
    with pytest.raises(TypeError, match="an instance of RecordProcessor"):
        run(thing)
