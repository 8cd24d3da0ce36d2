"""Decoders from `data` to columns that drop no row.

Each takes records with the column `data`, keeps the columns `keep` and adds `_corrupt`: the bytes of a
record that could not be decoded, else null. Runs on clusters, as `declared` does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from json import dumps, loads
from typing import Any, Final
from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kcl_spark import changes

WRAPPER: Final = "KclSparkWrapper"
_TAG_OF_THE_FIELD: Final = b"\x0a"
_BITS: Final = 7


def framed(data: Column) -> Column:
    """`data` as the field of a message. Its length takes five bytes, the most of a 32-bit varint."""
    length = F.octet_length(data)
    groups = [F.shiftright(length, _BITS * place).bitwiseAND(F.lit(0x7F)) for place in range(5)]
    more = [each.bitwiseOR(F.lit(0x80)) for each in groups[:-1]]
    octets = [F.lpad(F.hex(each), 2, "0") for each in (*more, groups[-1])]
    return F.concat(F.lit(_TAG_OF_THE_FIELD), F.unhex(F.concat(*octets)), data)


def with_wrapper(descriptor: bytes, message: str) -> bytes:
    """ValueError if not exactly one message has the name."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - only where protocol buffers are used

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


CORRUPT: Final = "_corrupt"
KEPT: Final = ("partition_key", "shard_id", "sequence_number", "sub_sequence_number")
_GLUE_HEADER_BYTES: Final = 18
_GLUE_VERSION: Final = 3
_GLUE_ZLIB: Final = 5
UNPACKED_BYTES_MOST: Final = 32 * 2**20
"""A few bytes of zlib can expand to fill the memory."""
_CONFLUENT_HEADER_BYTES: Final = 5
_ANY_LENGTH: Final = 2**31 - 1
_WRAPPER: Final = "kcl_wrapper"

Decoder = Callable[[bytes], "Mapping[str, Any] | None"]
RecordBatch = Any


def json(records: DataFrame, schema: str | StructType, *, keep: Sequence[str] = KEPT) -> DataFrame:
    """JSON objects. `schema` is a StructType or its text: `id long, amount double`."""
    fields = struct_type(records, schema)
    frame = records.withColumn("_parsed", _marked_json(F.col("data").cast("string"), fields))
    return _spread(frame, fields, keep, F.col(f"_parsed.{CORRUPT}").isNotNull())


def _marked_json(text: Column, fields: StructType) -> Column:
    with_mark = StructType([*fields.fields, StructField(CORRUPT, StringType())])
    return F.from_json(text, with_mark, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def avro(
    records: DataFrame, avro_schema: str, *, data: Column | None = None, keep: Sequence[str] = KEPT
) -> DataFrame:
    """Avro without a container. Needs `org.apache.spark:spark-avro_2.13` in `sparkPackages`.

    `avro_schema` is JSON. `data` is what to decode, such as `decode.confluent(...)`; by default the column
    `data`.
    """
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415 - only where its package is

    # Spark decodes corrupt data to a record of nulls. The field of a wrapper is null only for corrupt data.
    wrapped = {"type": "record", "name": _WRAPPER, "fields": [{"name": "v", "type": loads(avro_schema)}]}
    parsed = from_avro(F.col("data") if data is None else data, dumps(wrapped), {"mode": "PERMISSIVE"})
    frame = records.withColumn("_parsed", parsed["v"])
    return _spread(frame, _type_of(frame), keep)


def protobuf(
    records: DataFrame,
    message: str,
    *,
    descriptor: bytes,
    data: Column | None = None,
    keep: Sequence[str] = KEPT,
) -> DataFrame:
    """Protocol buffers. Needs `org.apache.spark:spark-protobuf_2.13` in `sparkPackages`.

    `descriptor` is a compiled FileDescriptorSet with the message. `data` is what to decode, by default the
    column `data`.
    """
    from pyspark.sql.protobuf.functions import from_protobuf  # noqa: PLC0415 - only where its package is

    parsed = from_protobuf(
        framed(F.col("data") if data is None else data),
        WRAPPER,
        options={"mode": "PERMISSIVE"},
        binaryDescriptorSet=with_wrapper(descriptor, message),
    )
    frame = records.withColumn("_parsed", parsed["v"])
    return _spread(frame, _type_of(frame), keep)


def python(
    records: DataFrame, decoder: Decoder, schema: str | StructType, *, keep: Sequence[str] = KEPT
) -> DataFrame:
    """A decoder in Python: bytes to a mapping of fields. An exception or None makes the row corrupt.

    Spark's workers call `decoder` once per record; its results have the `schema`.
    """
    import pyarrow as pa  # noqa: PLC0415 - many clusters have none
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    fields = struct_type(records, schema)
    frame = records.select("data", *keep)
    kept = [field for field in frame.schema.fields if field.name != "data"]
    result = StructType([*fields.fields, *kept, StructField(CORRUPT, BinaryType())])
    # Before Spark 4 it takes no time zone, and means UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    arrow = to_arrow_schema(result, **zone)
    names = fields.fieldNames()

    def decode(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            rows = [_decoded(decoder, data) for data in batch.column("data").to_pylist()]
            columns = [
                pa.array([None if row is None else row.get(name) for row, _ in rows], arrow.field(name).type)
                for name in names
            ]
            columns += [batch.column(field.name).cast(arrow.field(field.name).type) for field in kept]
            columns.append(pa.array([corrupt for _, corrupt in rows], pa.binary()))
            yield pa.record_batch(columns, schema=arrow)

    return frame.mapInArrow(decode, result)


def dynamodb(
    records: DataFrame,
    schema: str | StructType | None = None,
    *,
    keys: Sequence[str] = (),
    keep: Sequence[str] = ("partition_key", "shard_id"),
) -> DataFrame:
    """Changes of a DynamoDB table, in each form of `childRecordFormat`.

    The columns are `kind` (`insert`, `modify`, `remove`, `snapshot`), `table`, `keys`, `new`, `old`, `sequence_number`,
    `created_at`, those of `keep`, and `_corrupt`. Without a schema, `keys`, `new` and `old` are JSON with plain values: numbers with
    all their digits, sets as arrays, binary values in Base64.

    `schema` has the attributes of the items, as a StructType or its text: `keys`, `new` and `old` are then structs. With it, `keys`
    names the key attributes.
    """
    found = changes.parts(records)
    kept = [name for name in keep if name not in found]
    frame = records.select("data", *kept, *[each.alias(name) for name, each in found.items()])
    marked = F.col("kind").isNull()
    columns = {name: F.col(name) for name in found}
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
    """The payload after the 5-byte header of Confluent's registry; null without one."""
    return F.when(
        (F.length(data) >= _CONFLUENT_HEADER_BYTES) & (F.substring(data, 1, 1) == F.lit(b"\0")),
        F.substring(data, _CONFLUENT_HEADER_BYTES + 1, _ANY_LENGTH),
    )


def glue(data: bytes) -> bytes:
    """The uncompressed payload after the header of Glue's registry, for `python`.

    Raises:
        ValueError: no such header, or the payload is cut off or expands to more than 32 MiB.
        zlib.error: the payload cannot be uncompressed.
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
    """`glue` for a column, for `data=` of a decoder; null where `glue` raises."""

    def cut(framed_data: bytes | None) -> bytes | None:
        try:
            return None if framed_data is None else glue(bytes(framed_data))
        except (ValueError, zlib.error):
            return None

    arrow: dict[str, Any] = {"useArrow": True} if "useArrow" in signature(F.udf).parameters else {}
    return F.udf(cut, BinaryType(), **arrow)(data)


def glue_schema_id(data: bytes) -> str:
    """The id of the schema version in Glue's header, a UUID; ValueError if there is none."""
    glue(data[:_GLUE_HEADER_BYTES] if len(data) > 1 and data[1] == 0 else data)
    return str(UUID(bytes=bytes(data[2:_GLUE_HEADER_BYTES])))


def struct_type(records: DataFrame, schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return schema
    return records.sparkSession.createDataFrame([], schema).schema


def _decoded(decoder: Decoder, data: bytes) -> tuple[Mapping[str, Any] | None, bytes | None]:
    try:
        row = decoder(data)
    except Exception:  # noqa: BLE001 - whatever a decoder raises, the record is kept
        row = None
    return row, data if row is None else None


def _spread(
    frame: DataFrame, fields: StructType, keep: Sequence[str], marked: Column | None = None
) -> DataFrame:
    corrupt = F.col("_parsed").isNull() if marked is None else F.col("_parsed").isNull() | marked
    return frame.select(
        *[F.col(f"_parsed.`{name}`").alias(name) for name in fields.fieldNames()],
        *keep,
        F.when(corrupt, F.col("data")).alias(CORRUPT),
    )


def _type_of(frame: DataFrame) -> StructType:
    found = frame.schema["_parsed"].dataType
    assert isinstance(found, StructType), "the schema is that of a record"
    return found
