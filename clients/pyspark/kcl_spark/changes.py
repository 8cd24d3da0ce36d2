"""Changes of a DynamoDB table: what is in their JSON, and the last state of each item.

Values of DynamoDB such as `{"N":"1.50"}` become plain JSON by regular expressions over the text: numbers keep their
digits and no row goes through Python. In JSON outside of strings, `{"` begins an object, so `{"S":"` is always a
value of DynamoDB: an attribute or a map entry has an object there. Quantifiers are possessive: Java would use its
stack for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import StructType

ORDER: Final = "position"
REMOVED: Final = "kcl_is_removed"
IMAGES: Final = {"keys": "Keys", "new": "NewImage", "old": "OldImage"}
_STRING: Final = r'"(?:[^"\\]++|\\.)*+"'
_SPACES: Final = rf"({_STRING})|\s++"
_IS_SPACED: Final = rf"^\{{(?:\s|{_STRING}(?:\s|:\s))"
_REWRITES: Final = (
    (r'\{"NULL":true\}', "null"),
    (r'(\{"NS":\[|(?!^)\G,)"([^"]*)"', "$1$2"),
    (rf'\{{"(?:[SB]":({_STRING})|N":"([^"]*)"|BOOL":(true|false))\}}', "$1$2$3"),
    (r'\{"(?:M|L|SS|NS|BS)":([\[{])', "$1"),
    (rf"({_STRING})|([\]}}])\}}", "$1$2"),
)
"""In this order: each removes the ends of what the one before opened."""
_NUMBER: Final = r"-?\d[\d.eE+-]*+"
_NUMBERS_OF_PLAIN: Final = (rf'\G((?:{_STRING}|[^"\d-])*+)({_NUMBER})', '$1{"\\$number":"$2"}')
"""Else Spark reads a double."""
_OF_PLAIN: Final = (
    (rf'(?<!"\$map":)\{{"\$number":"({_NUMBER})"\}}', "$1"),
    (rf'(?<!"\$map":)\{{"\$binary":({_STRING})\}}', "$1"),
    (rf'(?<!"\$map":)\{{"\$set":(\[(?:{_STRING}|[^"\]])*+\])\}}', "$1"),
)
_TYPED: Final = (
    "eventName string, eventSourceARN string, dynamodb struct<ApproximateCreationDateTime: string, Keys: string, "
    "NewImage: string, OldImage: string, SequenceNumber: string>"
)
_PLAIN: Final = "kind string, `table` string, keys string, new string, old string, sequenceNumber string, createdAt string"
_SEGMENT: Final = r"(^|:)snapshot-\d{13}-\d{4}-\d{4}$"
_BEGAN: Final = r"(?:^|:)shardId-(\d{20})-"
_TIME_DIGITS: Final = 20
_NUMBER_DIGITS: Final = 40
_MILLISECONDS_FROM: Final = 10**11
_TABLE_OF_ARN: Final = ":table/([^/]+)/"
_TABLE_OF_STREAM: Final = r"^[a-z0-9-]+\$\d+\$([^$]+)\$"


COLUMNS: Final = ("kind", "table", *IMAGES, "sequence_number", "created_at", ORDER)


def parts(records: DataFrame, keep: Sequence[str]) -> DataFrame:
    """`kind` is null if that is no change."""
    data = F.col("data").cast("string")
    exact = F.when(data.startswith('{"kind":'), F.regexp_replace(data, *_NUMBERS_OF_PLAIN)).otherwise(data)
    places = [name for name in ("stream", "shard_id") if name in records.columns]
    # In one select Spark would read the JSON for every column.
    frame = records.select(
        *dict.fromkeys(["data", *keep, *places]), F.from_json(exact, f"{_TYPED}, {_PLAIN}").alias("_text")
    )
    text, typed = F.col("_text"), F.col("_text.dynamodb")
    kind, tables = F.lower(F.coalesce(text["eventName"], text["kind"])), [text["table"]]
    tables.append(_found(text["eventSourceARN"], _TABLE_OF_ARN))
    if "stream" in places:
        tables.append(_found(F.col("stream"), _TABLE_OF_STREAM))
    if "shard_id" in places:
        kind = F.when(kind.isNotNull() & F.col("shard_id").rlike(_SEGMENT), "snapshot").otherwise(kind)
    number = F.coalesce(typed["SequenceNumber"], text["sequenceNumber"])
    has_all = number.isNotNull() & F.coalesce(typed["Keys"], text["keys"]).isNotNull()
    images = {
        name: F.when(typed[field].isNotNull(), plain(typed[field], _REWRITES)).otherwise(
            plain(text[name], _OF_PLAIN)
        )
        for name, field in IMAGES.items()
    }
    moment = F.coalesce(typed["ApproximateCreationDateTime"], _found(text["createdAt"], r"(\d+)"))
    order = F.when(kind == "snapshot", "").otherwise(_order(number, "shard_id" in places))
    found = [F.when(has_all, kind), F.coalesce(*tables), *images.values(), number, _time(moment), order]
    return frame.select(
        "data",
        *keep,
        *[each.alias(name) for name, each in zip(COLUMNS, found)],  # noqa: B905 - Python 3.9
    )


def plain(image: Column, rewrites: Sequence[tuple[str, str]]) -> Column:
    """Sets become arrays; binary values stay Base64."""
    # Without braces: an attribute named M would look like a map.
    text = F.when(image.rlike(_IS_SPACED), F.regexp_replace(image, _SPACES, "$1")).otherwise(image)
    text = text.substr(F.lit(2), F.length(text) - 2)
    for found, instead in rewrites:
        text = F.regexp_replace(text, found, instead)
    return F.concat(F.lit("{"), text, F.lit("}"))


def _found(text: Column, pattern: str) -> Column:
    name = F.regexp_extract(text, pattern, 1)
    return F.when(name != "", name)


def _order(number: Column, has_shards: bool) -> Column:
    """Text that grows from one change of an item to the next.

    Numbers begin anew where a stream is switched on again, so the time at which the shard began comes first.
    """
    began = F.regexp_extract(F.col("shard_id"), _BEGAN, 1) if has_shards else F.lit("")
    return F.concat(F.lpad(began, _TIME_DIGITS, "0"), F.lit("-"), F.lpad(number, _NUMBER_DIGITS, "0"))


def _time(text: Column) -> Column:
    number = text.cast("decimal(24,6)")
    return F.when(number >= _MILLISECONDS_FROM, number / 1000).otherwise(number).cast("timestamp")


def last_states(changes: DataFrame) -> DataFrame:
    """One row for each item: attributes, `position`, and whether it was removed.

    `changes` are those of `decode.dynamodb`. An item of a snapshot is older than any change of it.
    """
    known = F.when(
        F.col("_corrupt").isNotNull(),
        F.raise_error(F.lit("a row is no change: leave out those with _corrupt")),
    )
    removed = F.col("kind") == "remove"
    imageless = F.when(
        ~removed & F.col("new").isNull(),
        F.raise_error(
            F.lit("a change has no new image: the table's stream needs NEW_IMAGE or NEW_AND_OLD_IMAGES")
        ),
    )
    flat = changes.select(*_attributes(changes), ORDER, F.coalesce(known, imageless, removed).alias(REMOVED))
    return newest(flat, key_columns(changes), [ORDER])


def key_columns(changes: DataFrame) -> list[str]:
    keys = changes.schema["keys"].dataType
    return keys.fieldNames() if isinstance(keys, StructType) else ["keys"]


def _attributes(changes: DataFrame) -> list[Column]:
    names, new = key_columns(changes), changes.schema["new"].dataType
    if not isinstance(new, StructType):
        return [F.col("keys"), F.col("new").alias("item")]
    rest = [name for name in new.fieldNames() if name not in names]
    return [F.col(f"keys.`{name}`") for name in names] + [F.col(f"new.`{name}`") for name in rest]


def newest(frame: DataFrame, keys: Sequence[str], newest_by: Sequence[str]) -> DataFrame:
    if not newest_by:
        return frame
    order = [F.col(each).desc() for each in newest_by]
    place = F.row_number().over(Window.partitionBy(*keys).orderBy(*order))
    return frame.withColumn("kcl_place", place).where("kcl_place = 1").drop("kcl_place")
