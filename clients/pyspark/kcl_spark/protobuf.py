"""A message of one field around another: so that what could not be decoded is told from a message without fields.

Spark gives a row of nulls for both. Owns the wrapper's descriptor and its few bytes in front of each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the customary name

WRAPPER: Final = "KclSparkWrapper"
_TAG_OF_THE_FIELD: Final = b"\x0a"
_BITS: Final = 7


def framed(data: Column) -> Column:
    """The records as the only field of a wrapper: its tag, its length, itself. Null stays null."""
    length = F.octet_length(data)
    frame = _varint(length, 5)
    for size in (4, 3, 2, 1):
        frame = F.when(length < 1 << _BITS * size, _varint(length, size)).otherwise(frame)
    return F.concat(F.lit(_TAG_OF_THE_FIELD), frame, data)


def with_wrapper(descriptor: bytes, message: str) -> bytes:
    """A FileDescriptorSet with the wrapper of a message of it.

    Args:
        descriptor: a compiled FileDescriptorSet.
        message: full name, or the name alone where only one has it.

    Raises:
        ValueError: there is no such message, or several.
    """
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - only where protocol buffers are used

    # Any: protobuf comes without types.
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


def _varint(number: Column, size: int) -> Column:
    """A number in so many bytes of seven bits, the lowest first; all but the last have the eighth bit."""
    value = F.lit(0).cast("long")
    for place in range(size):
        bits = F.shiftright(number, _BITS * place).bitwiseAND(F.lit(0x7F))
        if place < size - 1:
            bits = bits.bitwiseOR(F.lit(0x80))
        value = F.shiftleft(value, 8).bitwiseOR(bits.cast("long"))
    return F.unhex(F.lpad(F.hex(value), 2 * size, "0"))
