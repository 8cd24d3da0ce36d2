"""A landing log in S3, or on a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - the SDK's
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from kcl_landing.control import Refused, pause
from kcl_landing.store import Cause, NoObject, NotConditional, StoredObject, StorePlace, StoreTrouble

_CONNECT_S: Final = 4.0
_ANSWER_S: Final = 12.0
_ATTEMPTS: Final = 3
"""All end within a minute."""
_CONNECTIONS: Final = 64
_CONFLICTS: Final = 5
_CONFLICT_PAUSE_S: Final = 0.2
_REMOVED_AT_ONCE: Final = 1000
_DENIED: Final = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
_UNREACHABLE: Final = (ConnectionError, HTTPClientError, IncompleteReadError, OSError)
_CAUSES: Final[dict[str, Cause]] = {
    **dict.fromkeys(("SlowDown", "Throttling", "RequestLimitExceeded", "TooManyRequests"), "slow down"),
    **dict.fromkeys(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "EntityTooLarge"), "full"),
}
_STATUSES: Final[dict[int, Cause]] = {
    401: "denied",
    403: "denied",
    429: "slow down",
    507: "full",
    502: "unreachable",
    503: "slow down",
    504: "unreachable",
}


class S3Store:
    """Each object is one PUT: an upload in parts is not conditional everywhere.

    The SDK checks CRC32 of each body; AWS_REQUEST_CHECKSUM_CALCULATION=when_required turns that off.
    """

    def __init__(self, place: StorePlace) -> None:
        address, encryption = urlsplit(place.uri), place.encryption or ""
        self._bucket = address.netloc
        if not self._bucket:
            raise Refused(f"landing = {place.uri} names no bucket: s3://BUCKET/PREFIX")
        prefix = address.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._s3: Any = _client(place.endpoint, place.region)
        is_key = encryption.startswith("arn:")
        self._headers = {
            **({"ServerSideEncryption": "aws:kms" if is_key else encryption} if encryption else {}),
            **({"SSEKMSKeyId": encryption} if is_key else {}),
        }

    @classmethod
    def at(cls, place: StorePlace) -> S3Store:
        return cls(place)

    def create(self, path: str, content: bytes | memoryview) -> bool:
        for _attempt in range(_CONFLICTS):
            try:
                self._put(path, bytes(content), {"IfNoneMatch": "*"})
            except _ConditionRefused as refused:
                if refused.is_taken:
                    return False
                pause(_CONFLICT_PAUSE_S)  # S3 knows no winner yet
            else:
                return True
        raise StoreTrouble(
            "slow down", f"{self._name(path)}: other writers are creating it, {_CONFLICTS} times"
        )

    def replace(self, path: str, content: bytes) -> None:
        self._put(path, content, {})

    def read(self, path: str) -> bytes:
        with self._asked(path):
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + path)
            with answer["Body"] as body:
                content: bytes = body.read()
                return content

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        below = f"{self._prefix}{folder}/" if folder else self._prefix
        start = {"StartAfter": self._prefix + after} if after else {}
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=below, **start)
        with self._asked(folder):
            for page in pages:
                for each in page.get("Contents", ()):
                    yield StoredObject(each["Key"][len(self._prefix) :], each["Size"])

    def remove(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _REMOVED_AT_ONCE):
            some = paths[start : start + _REMOVED_AT_ONCE]
            objects = [{"Key": self._prefix + path} for path in some]
            with self._asked(some[0]):
                answer = self._s3.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
                )
            for error in answer.get("Errors", ()):
                raise StoreTrouble(
                    _cause(error.get("Code", ""), 403 if error.get("Code") == "AccessDenied" else 0),
                    f"{error.get('Key')} was not removed: {error.get('Code')} {error.get('Message')}",
                )

    def _put(self, path: str, content: bytes, condition: dict[str, str]) -> None:
        with self._asked(path):
            self._s3.put_object(
                Bucket=self._bucket, Key=self._prefix + path, Body=content, **self._headers, **condition
            )

    def _name(self, path: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{path}"

    @contextmanager
    def _asked(self, path: str) -> Generator[None]:
        try:
            yield
        except ClientError as error:
            raise self._answered(error, path) from error
        except (BotoCoreError, OSError) as error:
            cause: Cause = "failed"
            if isinstance(error, _DENIED):
                cause = "denied"
            elif isinstance(error, _UNREACHABLE):
                cause = "unreachable"
            raise StoreTrouble(cause, f"{self._name(path)}: {error}") from error

    def _answered(self, error: ClientError, path: str) -> Exception:
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "NoSuchKey":
            return NoObject(self._name(path))
        if status in {409, 412}:
            return _ConditionRefused(f"{self._name(path)}: {error}", is_taken=status == 412)
        if code == "NotImplemented":
            return NotConditional(
                f"{self._name(path)}: the server does not know `If-None-Match: *` ({error}). Use S3, or a server that does"
            )
        advice = " (reading what is not there needs s3:ListBucket, too)" if status == 403 else ""
        return StoreTrouble(_cause(code, status), f"{self._name(path)}: {error}{advice}")


class _ConditionRefused(StoreTrouble):
    def __init__(self, message: str, *, is_taken: bool) -> None:
        super().__init__("slow down", message)
        self.is_taken = is_taken


def _cause(code: str, status: int) -> Cause:
    return _CAUSES.get(code) or _STATUSES.get(status, "failed")


def _client(endpoint: str, region: str) -> Any:
    """Few servers but Amazon's are found as `bucket.server`."""
    session = boto3.session.Session()
    host = urlsplit(endpoint).hostname or ""
    is_amazon = not host or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_ANSWER_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "auto" if is_amazon else "path"},
        region_name=region or session.region_name or "us-east-1",
    )
    return session.client("s3", endpoint_url=endpoint or None, config=config)
