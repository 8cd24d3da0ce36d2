"""The demo's copies of a table: how they are built, compared with the table and told of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from kcl_client.testing import Ending, Report, drive
from kcl_local.demo import changes
from kcl_local.demo.changes import CopyOutcome, copied_by_spark, differing, why_no_spark
from kcl_local.demo.tablecopy import CopyTable, copied, counted, item_text

RIGHT = CopyOutcome(
    items=1_000,
    writes={"put": 2_000, "delete": 300},
    shards=5,
    killed=("a daemon",),
    delivered=Counter(snapshot=500, insert=1_800, remove=300),
    unequal={"copy by Python": 0, "copy by Spark": 0},
    exit_codes=(0, 0),
)


def test_copies_that_are_the_table_are_right() -> None:
    lines = list(RIGHT.lines())
    assert lines[-2:] == ["copies equal", "lost 0"]
    assert "copy by Spark   1,000 items, as the table has them" in lines
    assert RIGHT.is_right


@pytest.mark.parametrize(
    ("wrong", "last"),
    [
        ({"unequal": {"copy by Python": 0, "copy by Spark": 3}}, "lost 3"),
        ({"exit_codes": (0, 1)}, "lost 0"),
        ({"delivered": Counter(insert=1_800)}, "lost 0"),
        ({"delivered": Counter(snapshot=500)}, "lost 0"),
    ],
)
def test_a_run_is_right_only_with_everything(wrong: Mapping[str, object], last: str) -> None:
    outcome = replace(RIGHT, **wrong)  # type: ignore[arg-type]
    assert not outcome.is_right
    assert list(outcome.lines())[-1] == last


def test_a_run_without_spark_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_spark() is None
    monkeypatch.setattr(changes, "find_spec", lambda name: None if name == "pyspark" else object())
    reason = why_no_spark()
    assert reason == "it needs pyspark: pip install 'kcl-daemon[spark]'"
    assert f"copy by Spark   none: {reason}" in list(replace(RIGHT, no_spark=reason).lines())


def test_a_missing_or_different_item_counts_as_differing() -> None:
    table = {"a": "1", "b": "2", "c": "3"}
    assert differing(table, dict(table)) == 0
    assert differing(table, {"a": "1", "b": "4", "d": "3"}) == 3


def test_the_text_of_an_item_is_the_same_for_every_copy_of_it() -> None:
    of_boto3 = {"n": Decimal("1.50"), "big": Decimal("1E+3"), "tags": {"b", "a"}, "yes": True, "note": None}
    of_spark = {"yes": True, "tags": ["a", "b"], "big": 1000, "n": Decimal("1.5"), "absent": None}
    assert item_text(of_boto3) == item_text(of_spark)
    for other in ({"n": Decimal("1.51")}, {"yes": False}, {"tags": ["a"]}, {"n": "1.5"}):
        assert item_text({**of_spark, **other}) != item_text(of_spark)


def change(kind: str, item: str, number: int | None) -> bytes:
    keys = {"id": {"S": item}}
    new = {} if number is None else {"NewImage": {**keys, "n": {"N": str(number)}}}
    return json.dumps(
        {
            "eventName": kind,
            "eventSourceARN": "arn:aws:dynamodb:us-east-1:1:table/orders/stream/1",
            "dynamodb": {"Keys": keys, **new, "SequenceNumber": "1"},
        }
    ).encode()


def copy(directory: Path, shard_id: str, *given: bytes) -> Report:
    with closing((processor := CopyTable(directory)).database):
        return drive(processor, given, shard_id=shard_id, batch_size=2, ending=Ending.SHARD_ENDED)


def test_the_last_image_of_an_item_wins_and_a_removal_too(tmp_path: Path) -> None:
    assert copied(tmp_path) == {}
    copy(tmp_path, "snapshot-1795491048410-0000-0004", change("INSERT", "a", 1), change("INSERT", "b", 2))
    given = [change("MODIFY", "a", 3), change("REMOVE", "b", None), change("INSERT", "c", 4)]
    for _ in range(2):
        report = copy(tmp_path, "shardId-1", *given)
        assert report.last_checkpoint is not None
        assert report.last_checkpoint.is_shard_end
        assert copied(tmp_path) == {key: item_text({"id": key, "n": n}) for key, n in (("a", 3), ("c", 4))}
    assert counted(tmp_path) == {"snapshot": 2, "modify": 2, "remove": 2, "insert": 2}


def test_a_copy_by_spark_is_what_it_has_written_last(tmp_path: Path) -> None:
    assert copied_by_spark(tmp_path) == {}
    for turn, number in ((0, 1), (1, 2)):
        (tmp_path / f"turn={turn}").mkdir()
        rows = [{"id": "a", "n": number, "position": Decimal(5), "kcl_is_removed": False}]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"turn={turn}" / "part.parquet")
    for batch, number in ((6, 1), (7, 2)):
        (tmp_path / "_kcl_newest_batch").write_text(str(batch))
        assert copied_by_spark(tmp_path) == {"a": item_text({"id": "a", "n": number})}
    (tmp_path / "turn=1" / "part.parquet").write_bytes(b"half")
    assert copied_by_spark(tmp_path) == {}
