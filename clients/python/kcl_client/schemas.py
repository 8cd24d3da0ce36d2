"""Decodes records by the schema that came with them (`schemaRegistry = DECODE`).

Avro and Protocol buffers need `pip install 'kcl-daemon[schemas]'`; JSON needs nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from subprocess import DEVNULL, run
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from kcl_client._avro import avro_reader
from kcl_client._processor import Record
from kcl_protocol.messages import RecordSchema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import Message


__all__ = ["CannotDecode", "NoSchema", "decode"]

_SCHEMAS_MOST: Final = 256
_FILE: Final = "schema.proto"
_LOW: Final = 0x7F
_MORE: Final = 0x80
_INDEX_BYTES_MOST: Final = 5
_COMPILING_S: Final = 30
_SAID_CHARACTERS: Final = 500


class NoSchema(ValueError):
    """A record came without a schema: it had none, or `schemaRegistry` is not set."""


class CannotDecode(ValueError):
    """The schema or the data is invalid."""


def decode(record: Record) -> object:
    """The value of the record's data.

    Avro gives what fastavro returns, a dict for an Avro record. JSON gives a dict, list or scalar, not checked against
    the schema. Protocol buffers give a `google.protobuf.message.Message`; `google.protobuf.json_format.MessageToDict`
    turns it into a dict.

    Raises:
        NoSchema: the record has none.
        CannotDecode: the data does not fit the schema, or the schema is invalid.
        ImportError: the library for the format is not installed; names the extra.
    """
    schema = record.schema
    if schema is None:
        raise NoSchema(f"record {record.position} came without a schema")
    read = _reader(schema)
    if isinstance(read, str):
        raise CannotDecode(read)
    try:
        return read(record.data)
    except Exception as error:  # the libraries raise anything, such as IndexError and struct.error
        raise CannotDecode(
            f"record {record.position} does not fit schema {schema.name} ({schema.version_id}): {error!r}"
        ) from error


@lru_cache(_SCHEMAS_MOST)
def _reader(schema: RecordSchema) -> Callable[[bytes], object] | str:
    """Or why there is none."""
    match schema.data_format:
        case "JSON":
            return json.loads
        case "AVRO":
            make = avro_reader
        case "PROTOBUF":
            make = _protobuf
        case other:
            return f"schema {schema.name} is of the format {other}, which is not known here"
    try:
        return make(schema.definition)
    except ImportError as error:
        message = f"{schema.data_format} needs {error.name}: pip install 'kcl-daemon[schemas]'"
        raise ImportError(message, name=error.name) from error
    except Exception as error:  # noqa: BLE001 - as in `decode`
        return f"schema {schema.name} ({schema.version_id}) cannot be understood: {error}"


def _protobuf(definition: str) -> Callable[[bytes], object]:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    for file in _compiled(definition).file:
        pool.Add(file)
    described = pool.FindFileByName(_FILE)
    messages = [each for top in described.message_types_by_name.values() for each in _with_nested(top)]
    # The producer's library numbers all messages, nested ones too, by their full names.
    messages.sort(key=lambda each: each.full_name)
    classes = [message_factory.GetMessageClass(each) for each in messages]

    def read(data: bytes) -> Message:
        index, at = _varint(data)
        if index >= len(classes):
            raise ValueError(f"it names message {index} of {len(classes)}")
        found = classes[index]()
        found.ParseFromString(data[at:])
        return found

    return read


def _with_nested(message: Descriptor) -> list[Descriptor]:
    return [message, *(each for nested in message.nested_types for each in _with_nested(nested))]


def _compiled(definition: str) -> FileDescriptorSet:
    """By a process, because the compiler writes its complaints to stderr."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with TemporaryDirectory(prefix="kcl-schema-") as name:
        folder = Path(name)
        (folder / _FILE).write_text(definition, "utf-8")
        compiled = folder / "compiled"
        options = [f"-I{folder}", f"-I{files('grpc_tools') / '_proto'}", "--include_imports"]
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            *options,
            f"--descriptor_set_out={compiled}",
            _FILE,
        ]
        done = run(command, stdin=DEVNULL, capture_output=True, timeout=_COMPILING_S, check=False)  # noqa: S603 - the compiler, no shell
        if done.returncode != 0:
            said = " ".join(done.stderr.decode(errors="replace").split())[:_SAID_CHARACTERS]
            raise ValueError(f"it is no .proto text: {said or f'the compiler ended with {done.returncode}'}")
        return FileDescriptorSet.FromString(compiled.read_bytes())


def _varint(data: bytes) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(data[:_INDEX_BYTES_MOST]):
        number |= (byte & _LOW) << 7 * place
        if byte < _MORE:
            return number, place + 1
    raise ValueError("it does not begin with the number of a message")
