"""Decoders from `data` to columns that drop no row.

Each keeps the columns `keep` and adds `_corrupt`: the bytes of a record that could not be decoded, else null.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from json import dumps, loads
from secrets import token_hex
from typing import Any, Final, NamedTuple, Union
from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kcl_spark import changes

WRAPPER: Final = "KclSparkWrapper"
_TAG_OF_THE_FIELD: Final = b"\x0a"
_BITS: Final = 7
CORRUPT: Final = "_corrupt"
KEPT: Final = ("partition_key", "shard_id", "sequence_number", "sub_sequence_number")
_ARRIVALS: Final = ("approximate_arrival_timestamp", "approximateArrivalTimestamp")
_GLUE_HEADER_BYTES: Final = 18
_GLUE_VERSION: Final = 3
_GLUE_ZLIB: Final = 5
UNPACKED_BYTES_MOST: Final = 32 * 2**20
"""A few bytes of zlib can fill the memory."""
_CONFLUENT_HEADER_BYTES: Final = 5
_ANY_LENGTH: Final = 2**31 - 1
_WRAPPER: Final = "kcl_wrapper"
_ARRAY: Final = r"^\s*\["
_TAIL: Final = r"[\x{80}-\x{bf}]"
_UTF8: Final = "|".join(
    (
        rf"[\x{{c2}}-\x{{df}}]{_TAIL}",
        rf"\x{{e0}}[\x{{a0}}-\x{{bf}}]{_TAIL}",
        rf"[\x{{e1}}-\x{{ec}}\x{{ee}}\x{{ef}}]{_TAIL}{{2}}",
        rf"\x{{ed}}[\x{{80}}-\x{{9f}}]{_TAIL}",
        rf"\x{{f0}}[\x{{90}}-\x{{bf}}]{_TAIL}{{2}}",
        rf"[\x{{f1}}-\x{{f3}}]{_TAIL}{{3}}",
        rf"\x{{f4}}[\x{{80}}-\x{{8f}}]{_TAIL}{{2}}",
    )
)
RecordBatch = Any
Row = Union[Sequence[Any], None]
Decoder = Callable[[bytes], "Mapping[str, Any] | None"]


def framed(data: Column) -> Column:
    """As the field of a message. Its length takes five bytes, the most of a varint."""
    length = F.octet_length(data)
    groups = [F.shiftright(length, _BITS * place).bitwiseAND(F.lit(0x7F)) for place in range(5)]
    more = [each.bitwiseOR(F.lit(0x80)) for each in groups[:-1]]
    octets = [F.lpad(F.hex(each), 2, "0") for each in (*more, groups[-1])]
    return F.concat(F.lit(_TAG_OF_THE_FIELD), F.unhex(F.concat(*octets)), data)


def with_wrapper(descriptor: bytes, message: str) -> bytes:
    """ValueError: not exactly one message has the name."""
    from google.protobuf import descriptor_pb2

    files: Any = descriptor_pb2.FileDescriptorSet.FromString(descriptor)
    found = [
        (file.name, full)
        for file in files.file
        for full in _names(f"{file.package}." if file.package else "", file.message_type)
        if full == message or full.rpartition(".")[2] == message
    ]
    if len(found) != 1:
        raise ValueError(f"decode.protobuf: the descriptor has {len(found)} messages named {message!r}")
    ((its_file, full_name),) = found
    wrapper = files.file.add(name="kcl_spark_wrapper.proto", syntax="proto3", dependency=[its_file])
    field = wrapper.message_type.add(name=WRAPPER).field.add(name="v", number=1, type_name=f".{full_name}")
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    return bytes(files.SerializeToString())


def _names(prefix: str, messages: Iterable[Any]) -> Iterator[str]:
    for each in messages:
        yield prefix + each.name
        yield from _names(f"{prefix}{each.name}.", each.nested_type)


class EventTime(NamedTuple):
    column: str
    not_after: str
    clamp: bool


def event_time(column: str, not_after: str = "1 minute", *, clamp: bool = False) -> EventTime:
    """For `event_time=` of a decoder: guards Spark's watermark, which follows the latest time and never goes back.

    A record whose `column` is later than its arrival and `not_after` is corrupt; so is one with a time and no arrival. With
    `clamp` it gets the time of its arrival, which producers cannot set.
    """
    return EventTime(column, not_after, clamp)


def json(
    records: DataFrame,
    schema: str | StructType,
    *,
    lines: bool = False,
    event_time: EventTime | None = None,
    keep: Sequence[str] = KEPT,
) -> DataFrame:
    """One JSON object a record, all of it. `schema`: a StructType or its text, `id long, amount double`.

    With `lines` an array, or an object on each line; each makes a row with its place in `_index`, from 0, and
    `_corrupt` has the line or the array.
    """
    fields = struct_type(records, schema)
    is_text = _is_utf8(F.col("data"))
    frame = records.withColumn("_text", F.col("data").cast("string"))
    if not lines:
        frame, objects, is_whole = _objects(frame, _bracketed(F.col("_text")), fields)
        frame = frame.withColumn("_parsed", F.when(F.size(objects) == 1, objects.getItem(0)))
        one = is_text & is_whole & (F.size(objects) == 1)
        return _spread(frame, fields, keep, ~F.coalesce(one, F.expr("false")), event_time=event_time)
    several = F.filter(F.split("_text", "\r?\n"), lambda line: F.trim(line) != "")
    is_one = ~is_text | F.col("_text").rlike(_ARRAY) | (F.size(several) == 0)
    pieces = F.when(is_one, F.array("_text")).otherwise(several)
    frame = frame.select("*", F.posexplode(pieces).alias("_line", "_piece"))
    piece = F.col("_piece")
    array = F.when(piece.rlike(_ARRAY), piece).otherwise(_bracketed(piece))
    frame, objects, is_whole = _objects(frame, array, fields)
    is_good = F.coalesce(is_text & is_whole & (F.size(objects) > 0), F.expr("false"))
    rows = F.when(is_good, objects).otherwise(F.array(F.lit(None).cast(fields)))
    frame = frame.select("*", F.posexplode(rows).alias("_place", "_parsed"))
    data = F.when(is_text, piece.cast("binary")).otherwise(F.col("data"))
    index = (F.col("_line") + F.col("_place")).alias("_index")
    return _spread(frame, fields, keep, data=data, more=[index], event_time=event_time)


def _bracketed(text: Column) -> Column:
    return F.concat(F.lit("["), text, F.lit("]"))


def _objects(frame: DataFrame, array: Column, fields: StructType) -> tuple[DataFrame, Column, Column]:
    """And whether the text is nothing but such JSON, to its end.

    `from_json` stops behind the first value. So the array goes into an object with two keys that no record can know.
    """
    first, last = token_hex(), token_hex()
    text = F.concat(F.lit(f'{{"_all":{{"{first}":'), array, F.lit(f',"{last}":[]}}}}'))
    kind = StructType([StructField("_all", MapType(StringType(), ArrayType(fields)))])
    frame = frame.withColumn("_found", _marked_json(text, kind))  # parsed once
    found, keys = F.col("_found._all"), F.map_keys("_found._all")
    objects = F.flatten(F.map_values(found))
    is_whole = (
        F.col(f"_found.{CORRUPT}").isNull()
        & (F.size(found) == 2)
        & F.array_contains(keys, first)
        & F.array_contains(keys, last)
        & ~F.exists(objects, lambda each: each.isNull())
    )
    return frame, objects, is_whole


def _is_utf8(data: Column) -> Column:
    """Spark replaces other bytes, and says nothing."""
    if hasattr(F, "is_valid_utf8"):  # Spark 4
        return F.is_valid_utf8(data.cast("string"))
    # A character for each byte; what is left without those of UTF-8.
    left = F.regexp_replace(F.decode(data, "ISO-8859-1"), _UTF8, "")
    return ~left.rlike("[\\x{80}-\\x{ff}]")


def _marked_json(text: Column, fields: StructType) -> Column:
    with_mark = StructType([*fields.fields, StructField(CORRUPT, StringType())])
    return F.from_json(text, with_mark, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def avro(
    records: DataFrame,
    avro_schema: str,
    *,
    data: Column | None = None,
    event_time: EventTime | None = None,
    keep: Sequence[str] = KEPT,
) -> DataFrame:
    """Avro without a container. Needs `org.apache.spark:spark-avro_2.13` in `sparkPackages`.

    `avro_schema` is JSON. `data`: what to decode, such as `decode.confluent(...)`; by default the column.
    """
    from pyspark.sql.avro.functions import from_avro

    # Corrupt data becomes a record of nulls, but a wrapper's field is null only then.
    wrapped = {"type": "record", "name": _WRAPPER, "fields": [{"name": "v", "type": loads(avro_schema)}]}
    parsed = from_avro(F.col("data") if data is None else data, dumps(wrapped), {"mode": "PERMISSIVE"})
    frame = records.withColumn("_parsed", parsed["v"])
    return _spread(frame, _type_of(frame), keep, event_time=event_time)


def protobuf(
    records: DataFrame,
    message: str,
    *,
    descriptor: bytes,
    data: Column | None = None,
    event_time: EventTime | None = None,
    keep: Sequence[str] = KEPT,
) -> DataFrame:
    """Protocol buffers. Needs `org.apache.spark:spark-protobuf_2.13` in `sparkPackages`.

    `descriptor`: a compiled FileDescriptorSet with the message. `data`: what to decode, by default the column.
    """
    from pyspark.sql.protobuf.functions import from_protobuf

    parsed = from_protobuf(
        framed(F.col("data") if data is None else data),
        WRAPPER,
        options={"mode": "PERMISSIVE"},
        binaryDescriptorSet=with_wrapper(descriptor, message),
    )
    frame = records.withColumn("_parsed", parsed["v"])
    return _spread(frame, _type_of(frame), keep, event_time=event_time)


def python(
    records: DataFrame,
    decoder: Decoder,
    schema: str | StructType,
    *,
    event_time: EventTime | None = None,
    keep: Sequence[str] = KEPT,
) -> DataFrame:
    """`decoder` makes a mapping of fields of bytes, once per record, in Spark's workers.

    An exception, None, or a value that is not of its type in `schema` makes the row corrupt.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = struct_type(records, schema)
    if event_time is not None:
        return _python_guarded(records, decoder, fields, event_time, keep)
    frame = records.select("data", *keep)
    kept = [field for field in frame.schema.fields if field.name != "data"]
    result = StructType([*fields.fields, *kept, StructField(CORRUPT, BinaryType())])
    # Before Spark 4 it means UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    arrow = to_arrow_schema(result, **zone)
    names = fields.fieldNames()

    def decode(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            data = batch.column("data").to_pylist()
            rows = [_decoded(decoder, each, names) for each in data]
            columns = [_converted(rows, at, arrow.field(name).type) for at, name in enumerate(names)]
            if any(each is None for each in columns):
                kinds = [arrow.field(name).type for name in names]
                rows = [row if row is None or _fits(row, kinds) else None for row in rows]
                columns = [_converted(rows, at, kind) for at, kind in enumerate(kinds)]
            columns += [batch.column(field.name).cast(arrow.field(field.name).type) for field in kept]
            corrupt = [each if row is None else None for row, each in zip(rows, data)]
            columns.append(pa.array(corrupt, pa.binary()))
            yield pa.record_batch(columns, schema=arrow)

    return frame.mapInArrow(decode, result)


def _python_guarded(
    records: DataFrame, decoder: Decoder, fields: StructType, guard: EventTime, keep: Sequence[str]
) -> DataFrame:
    arrival = _arrival_of(records)
    carried = [*keep, *([] if arrival in keep else [arrival]), "_data"]
    found = python(records.withColumn("_data", F.col("data")), decoder, fields, keep=carried)
    values = {name: F.col(f"`{name}`") for name in fields.fieldNames()}
    lies = _guard(found, fields, values, guard)
    corrupt = F.when(lies | F.col(CORRUPT).isNotNull(), F.col("_data")).alias(CORRUPT)
    return found.select(*[values[name].alias(name) for name in values], *keep, corrupt)


def _arrival_of(frame: DataFrame) -> str:
    for name in _ARRIVALS:
        if name in frame.columns:
            return name
    raise ValueError(f"event_time compares with the arrival of a record: the column {_ARRIVALS[0]} is needed")


def _guard(frame: DataFrame, fields: StructType, values: dict[str, Column], guard: EventTime) -> Column:
    """Which rows lie; `values` then have no time that is too late."""
    if not isinstance(fields[guard.column].dataType, TimestampType):
        raise TypeError(f"event_time: {guard.column} is no timestamp; `schema` must say so")
    at, arrived = values[guard.column], F.col(_arrival_of(frame))
    latest = arrived + F.expr(f"INTERVAL {guard.not_after}")
    lies = at.isNotNull() & ~F.coalesce(at <= latest, F.expr("false"))
    values[guard.column] = F.when(~lies, at).otherwise(
        arrived if guard.clamp else F.lit(None).cast("timestamp")
    )
    return F.expr("false") if guard.clamp else lies


def dynamodb(
    records: DataFrame,
    schema: str | StructType | None = None,
    *,
    keys: Sequence[str] = (),
    keep: Sequence[str] = ("partition_key", "shard_id"),
) -> DataFrame:
    """Changes of a DynamoDB table, in each form of `childRecordFormat`.

    The columns are `kind` (`insert`, `modify`, `remove`, `snapshot`), `table`, `keys`, `new`, `old`,
    `sequence_number`, `created_at`, `position` (text that grows from one change of an item to the next), those of
    `keep`, and `_corrupt`. Without `schema`, a StructType or its text, `keys`, `new` and `old` are JSON: numbers with
    all their digits, sets as arrays, binary in Base64. With it they are structs, and `keys` names the key attributes.
    """
    kept = [name for name in keep if name not in changes.COLUMNS]
    frame = changes.parts(records, kept)
    marked = F.col("kind").isNull()
    columns = {name: F.col(name) for name in changes.COLUMNS}
    if schema is not None:
        fields = struct_type(records, schema)
        of_key = StructType([field for field in fields.fields if field.name in keys])
        if not keys or len(of_key.fields) != len(keys):
            raise ValueError(
                f"decode.dynamodb: keys={list(keys)!r}: name the key attributes, as the schema has them"
            )
        for name in changes.IMAGES:
            its_fields = of_key if name == "keys" else fields
            frame = frame.withColumn(name, _marked_json(F.col(name), its_fields))
            marked |= F.col(f"{name}.{CORRUPT}").isNotNull()
            image = F.struct(*[F.col(f"{name}.`{each}`") for each in its_fields.fieldNames()])
            columns[name] = F.when(F.col(name).isNotNull(), image).alias(name)
    return frame.select(*columns.values(), *kept, F.when(marked, F.col("data")).alias(CORRUPT))


def confluent(data: Column) -> Column:
    """Behind the 5-byte header of Confluent's registry; null without one."""
    return F.when(
        (F.length(data) >= _CONFLUENT_HEADER_BYTES) & (F.substring(data, 1, 1) == F.lit(b"\0")),
        F.substring(data, _CONFLUENT_HEADER_BYTES + 1, _ANY_LENGTH),
    )


def glue(data: bytes) -> bytes:
    """Behind the header of Glue's registry, uncompressed, for `python`.

    ValueError: no such header, or the payload is cut off or over 32 MiB. zlib.error: it cannot be uncompressed.
    """
    if len(data) < _GLUE_HEADER_BYTES or data[0] != _GLUE_VERSION or data[1] not in {0, _GLUE_ZLIB}:
        raise ValueError("no header of the Glue schema registry")
    payload = data[_GLUE_HEADER_BYTES:]
    return _unpacked(payload) if data[1] == _GLUE_ZLIB else payload


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(packed, UNPACKED_BYTES_MOST + 1)
    if len(data) > UNPACKED_BYTES_MOST:
        raise ValueError(f"more than {UNPACKED_BYTES_MOST} bytes when uncompressed")
    if not unpacking.eof:
        raise ValueError("cut off")
    return data


def glue_payload(data: Column) -> Column:
    """`glue` for a column; null where it raises."""

    def cut(framed_data: bytes | None) -> bytes | None:
        try:
            return None if framed_data is None else glue(bytes(framed_data))
        except (ValueError, zlib.error):
            return None

    arrow: dict[str, Any] = {"useArrow": True} if "useArrow" in signature(F.udf).parameters else {}
    return F.udf(cut, BinaryType(), **arrow)(data)


def glue_schema_id(data: bytes) -> str:
    """A UUID; ValueError: no such header."""
    glue(data[:_GLUE_HEADER_BYTES] if len(data) > 1 and data[1] == 0 else data)
    return str(UUID(bytes=bytes(data[2:_GLUE_HEADER_BYTES])))


def struct_type(records: DataFrame, schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return schema
    return records.sparkSession.createDataFrame([], schema).schema


def _decoded(decoder: Decoder, data: bytes, names: Sequence[str]) -> Row:
    try:
        row = decoder(data)
        return None if row is None else [row.get(name) for name in names]
    except Exception:  # noqa: BLE001 - whatever a decoder raises, the record is kept
        return None


def _converted(rows: Iterable[Row], at: int, kind: Any) -> Any:
    """None: not all are of its type."""
    import pyarrow as pa

    try:
        return pa.array([None if row is None else row[at] for row in rows], kind)
    except Exception:  # noqa: BLE001 - of many kinds, by the value
        return None


def _fits(row: Sequence[Any], kinds: Sequence[Any]) -> bool:
    return all(_converted([row], at, kind) is not None for at, kind in enumerate(kinds))


def _spread(
    frame: DataFrame,
    fields: StructType,
    keep: Sequence[str],
    marked: Column | None = None,
    *,
    data: Column | None = None,
    more: Sequence[Column] = (),
    event_time: EventTime | None = None,
) -> DataFrame:
    corrupt = F.col("_parsed").isNull() if marked is None else F.col("_parsed").isNull() | marked
    values = {name: F.col(f"_parsed.`{name}`") for name in fields.fieldNames()}
    if event_time is not None:
        corrupt |= _guard(frame, fields, values, event_time)
    return frame.select(
        *[values[name].alias(name) for name in values],
        *keep,
        *more,
        F.when(corrupt, F.col("data") if data is None else data).alias(CORRUPT),
    )


def _type_of(frame: DataFrame) -> StructType:
    found = frame.schema["_parsed"].dataType
    assert isinstance(found, StructType), "the schema is that of a record"
    return found
