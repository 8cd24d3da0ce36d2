"""Stores for the contract suite, each a new one with nothing in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import boto3
from botocore.config import Config
from pyarrow import fs

from kcl_landing.arrow_store import ArrowStore
from kcl_landing.folder_store import FolderStore
from kcl_landing.store import LogStore, open_store
from kcl_local.dynamodb import DynamoDbServer
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.landing.memory_store import MemoryStore

NewStore: TypeAlias = Callable[[], LogStore]


@dataclass(frozen=True, slots=True)
class Backend:
    name: str
    open: Callable[[Path], AbstractContextManager[NewStore]]


@contextmanager
def _memory(_folder: Path) -> Generator[NewStore]:
    yield MemoryStore


@contextmanager
def _folders(folder: Path) -> Generator[NewStore]:
    yield lambda: FolderStore(folder / secrets.token_hex(4))


@contextmanager
def _local_s3(_folder: Path) -> Generator[NewStore]:
    with DynamoDbServer() as server, credentials_that_nobody_checks():
        yield lambda: new_s3(server.s3_url)


def new_s3(url: str) -> LogStore:
    """In a bucket that is made for it."""
    bucket = f"log-{secrets.token_hex(4)}"
    s3_client(url).create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}/some/prefix", endpoint=url, region=REGION)


def s3_client(url: str) -> Any:
    path_style = Config(s3={"addressing_style": "path"})
    return boto3.session.Session().client("s3", endpoint_url=url, region_name=REGION, config=path_style)


@contextmanager
def _arrow(folder: Path) -> Generator[NewStore]:
    yield lambda: ArrowStore(NeverOver(), str(folder / secrets.token_hex(4)))


class NeverOver:
    """pyarrow's local file system, but a file is not moved over another one: as HDFS does it."""

    def __init__(self) -> None:
        self._local = fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def move(self, source: str, target: str) -> None:
        Path(target).hardlink_to(source)
        Path(source).unlink()


BACKENDS: Final = (
    Backend("memory", _memory),
    Backend("folder", _folders),
    Backend("local S3", _local_s3),
    Backend("pyarrow", _arrow),
)
