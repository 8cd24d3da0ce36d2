"""The promises of DynamoDB Streams, asked of our endpoint and of moto's."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest
from moto.server import ThreadedMotoServer

from kcl_local.dynamodb import DynamoDbServer
from tests.contract.streams_promises import PROMISES, Promise, Streams, connected, held_to

MOTO: Final = {
    "a_stream_has_the_table_in_its_arn_and_a_time_as_its_label": "a label has microseconds",
    "a_list_of_streams_comes_in_pages": "all streams in one page, whatever Limit says",
    "an_open_shard_has_no_children": "ShardFilter has no effect",
    "the_size_is_that_of_keys_and_images": "SizeBytes is the length of the record's JSON",
    "the_time_of_a_change_is_in_whole_seconds": "microseconds",
    "a_write_that_changes_nothing_is_no_change": "it is a MODIFY",
    "an_update_of_an_absent_item_is_one_insert": "an INSERT of the key, then a MODIFY",
    "a_time_is_a_position_too": "AT_TIMESTAMP is not known: status 500",
    "a_number_outside_the_shard_is_refused": "any number is taken",
    "a_page_has_no_more_than_a_mebibyte": "pages have no limit in bytes",
    "a_page_of_more_than_1000_is_refused": "any Limit is taken",
    "what_is_not_there_is_not_found": "status 500 for a shard",
    "an_iterator_that_is_none_is_refused": "status 500",
    "a_stream_that_is_switched_off_is_read_to_its_end": "it stays ENABLED, and the next write fails with status 500",
    "a_stream_that_is_switched_on_again_is_another": "it cannot be switched on again",
    "the_stream_of_a_deleted_table_can_be_read": "it is gone with the table",
}


@pytest.fixture(params=["ours", "moto"], scope="module")
def server(request: pytest.FixtureRequest) -> Generator[Streams]:
    if request.param == "ours":
        with DynamoDbServer() as ours:
            yield connected("ours", ours.url, ours.url, {})
        return
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    try:
        url = "http://{}:{}".format(*moto.get_host_and_port())
        yield connected("moto", url, url, MOTO)
    finally:
        moto.stop()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(server: Streams, promise: Promise) -> None:
    held_to(server, promise)
