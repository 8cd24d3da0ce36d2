"""Objects of the log that are JSON, but not what a lander writes: planning stops with the path of the one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StringType, StructType

from kcl_landing.log import PAGE
from kcl_spark_source import Damaged, KclDataSource
from tests.spark.landed import BEGIN_MS, Landed, key

INFO = "_kcl_landing.json"
MANIFEST = f"_manifests/{key(0)}.json"
FIRST = f"_manifests/{key(0)}.first.json"
OLDER = f"_manifests/{key(0)}/{0:012}.json"
MISSING: Any = "missing"
WRONG: list[Any] = [MISSING, True, 1.5, -2, 10**40, "x", [], [7], {"a": 1}]
RIGHT: list[tuple[str, Any]] = [
    ("logId", "x"),
    ("last", MISSING),
    ("lastMs", MISSING),
    ("behindMs", MISSING),
    ("entries", []),
]
Read = Callable[[Path], None]


def plan_stream(folder: Path) -> None:
    reader = KclDataSource({"path": str(folder)}).streamReader(StructType().add("data", StringType()))
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start, ReadMaxBytes(10**12)))


def plan_batch(folder: Path) -> None:
    KclDataSource({"path": str(folder)}).reader(StructType().add("data", StringType())).partitions()


def entry(number: int) -> list[Any]:
    at_ms = BEGIN_MS + number * 1000
    return [number, number, f"{number}/0", f"{number + 1}/0", 100, 64, 123, at_ms, at_ms + 990, 1, None]


@pytest.fixture(params=[plan_stream, plan_batch])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


@pytest.fixture
def said(tmp_path: Path) -> dict[str, Any]:
    """What the objects of a log say in which a shard has an older page, and one segment that has expired."""
    Landed(tmp_path)
    objects: dict[str, Any] = {
        INFO: json.loads((tmp_path / INFO).read_text()),
        MANIFEST: {
            "stream": "words",
            "shard": key(0).partition("/")[2],
            "entries": [entry(PAGE + number) for number in range(3)],
            "behindMs": 0,
            "atMs": BEGIN_MS,
            "version": 1,
        },
        FIRST: {"first": 1, "last": "1/0", "lastMs": BEGIN_MS, "version": 1},
        OLDER: [entry(number) for number in range(PAGE)],
    }
    for path, content in objects.items():
        put(tmp_path, path, json.dumps(content))
    plan_batch(tmp_path)
    return objects


def put(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def refused(read: Read, folder: Path, path: str, content: object) -> None:
    put(folder, path, content if isinstance(content, str) else json.dumps(content))
    begun_s = time.process_time()
    with pytest.raises(Damaged, match=rf"^{path} is damaged \(") as caught:
        read(folder)
    assert len(str(caught.value)) < 1_000
    assert time.process_time() - begun_s < 1.0


@pytest.mark.parametrize("path", [INFO, MANIFEST, FIRST, OLDER])
@pytest.mark.parametrize(
    "text", ["7", '"x"', "{}", "[1]", "[[]]", "[" * 100_000, '{"version":1,"entries":[[]]}']
)
def test_an_object_of_another_shape_is_damage(
    said: dict[str, Any], tmp_path: Path, read: Read, path: str, text: str
) -> None:
    assert path in said
    if path != INFO or text != "{}":  # that is of another version
        refused(read, tmp_path, path, text)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((INFO, name) for name in ("layout", "format", "logId")),
        *((MANIFEST, name) for name in ("entries", "atMs", "behindMs")),
        *((FIRST, name) for name in ("first", "last", "lastMs")),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_damage(
    said: dict[str, Any], tmp_path: Path, read: Read, path: str, name: str
) -> None:
    for wrong in WRONG:
        if (name, wrong) in RIGHT:
            continue
        its = {**said[path], name: wrong}
        if wrong is MISSING:
            del its[name]
        refused(read, tmp_path, path, its)


@pytest.mark.parametrize("path", [MANIFEST, OLDER])
@pytest.mark.parametrize("place", [0, 2])
def test_an_entry_with_a_wrong_field_is_damage(
    said: dict[str, Any], tmp_path: Path, read: Read, path: str, place: int
) -> None:
    for field in (0, 1, 2, 3, 4, 5, 7, 8, 10):
        refuse_field(said, tmp_path, read, (path, place, field))


def refuse_field(said: dict[str, Any], folder: Path, read: Read, where: tuple[str, int, int]) -> None:
    path, place, field = where
    rows = said[path] if path == OLDER else said[path]["entries"]
    right = list(rows[place + 1 if path == OLDER else place])
    for wrong in WRONG:
        if field == 10 and wrong == []:
            continue
        row = (
            right[:field] if wrong is MISSING and field < 9 else [*right[:field], wrong, *right[field + 1 :]]
        )
        rows[place + 1 if path == OLDER else place] = row
        refused(read, folder, path, said[path])
    rows[place + 1 if path == OLDER else place] = right


def test_entries_out_of_order_are_damage(said: dict[str, Any], tmp_path: Path, read: Read) -> None:
    for path, rows in ((OLDER, said[OLDER]), (MANIFEST, said[MANIFEST]["entries"])):
        rows[1], rows[2] = rows[2], rows[1]
        refused(read, tmp_path, path, said[path])
        rows[1], rows[2] = rows[2], rows[1]
        put(tmp_path, path, json.dumps(said[path]))


def test_a_number_far_beyond_all_pages_is_a_gap_that_is_found_at_once(
    said: dict[str, Any], tmp_path: Path, read: Read
) -> None:
    said[MANIFEST]["entries"] = [[10**14, 10**14, *entry(9)[2:]]]
    put(tmp_path, MANIFEST, json.dumps(said[MANIFEST]))
    begun_s = time.process_time()
    with pytest.raises(Damaged, match=f"pages of shard {key(0)} lack the segments {PAGE} to"):
        read(tmp_path)
    said[OLDER][-1][1] = 10**14 - 1
    put(tmp_path, OLDER, json.dumps(said[OLDER]))
    read(tmp_path)
    assert time.process_time() - begun_s < 1.0
