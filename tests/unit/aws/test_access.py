"""Where the record path goes and as whom: whatever the SDK would do."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from botocore.credentials import Credentials, RefreshableCredentials

from kcl_daemon.aws.access import AwsAccess, CallLimiters, proxies_for
from kcl_daemon.aws.session import Clients, make_clients
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AccessDenied, InvalidRequest
from kcl_daemon.transport.pool import AccessKeys, ServiceEndpoint

pytestmark = pytest.mark.anyio

STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
CONSUMER = f"{STREAM}/consumer/app:1"
SUBSCRIBE = {"ConsumerARN": CONSUMER, "ShardId": "s", "StartingPosition": {"Type": "LATEST"}}
BARE = {
    "AWS_ACCESS_KEY_ID": "AKID",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
}


@contextmanager
def opened(endpoint: str | None = None, **variables: str) -> Generator[Clients, None, None]:
    """Clients in an environment with these variables and no others of AWS."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**BARE, **variables}.items():
            patch.setenv(name, value)
        clients = make_clients(Endpoints("eu-west-1", endpoint, None))
    try:
        yield clients
    finally:
        clients.close()


@pytest.mark.parametrize(
    ("endpoint", "variables", "operation", "parameters", "url"),
    [
        (None, {}, "GetRecords", {"ShardIterator": "i"}, "https://kinesis.eu-west-1.amazonaws.com/"),
        (
            None,
            {},
            "GetRecords",
            {"ShardIterator": "i", "StreamARN": STREAM},
            "https://123456789012.data-kinesis.eu-west-1.amazonaws.com/",
        ),
        (
            None,
            {},
            "SubscribeToShard",
            SUBSCRIBE,
            "https://123456789012.data-kinesis.eu-west-1.amazonaws.com/",
        ),
        (
            None,
            {"AWS_USE_FIPS_ENDPOINT": "true"},
            "GetRecords",
            {"ShardIterator": "i"},
            "https://kinesis-fips.eu-west-1.amazonaws.com/",
        ),
        (
            None,
            {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "GetRecords",
            {"ShardIterator": "i"},
            "https://kinesis.eu-west-1.api.aws/",
        ),
        (
            None,
            {"AWS_ENDPOINT_URL_KINESIS": "http://127.0.0.1:4566"},
            "GetRecords",
            {"ShardIterator": "i"},
            "http://127.0.0.1:4566/",
        ),
        ("http://localhost:1/", {}, "GetRecords", {"ShardIterator": "i"}, "http://localhost:1/"),
    ],
)
async def test_a_request_goes_where_the_sdk_would_send_it(
    endpoint: str | None, variables: dict[str, str], operation: str, parameters: dict[str, object], url: str
) -> None:
    with opened(endpoint, **variables) as clients:
        access = AwsAccess(clients.of_kinesis, CallLimiters().kinesis)
        found = await access.target(operation, parameters)
        assert found == ServiceEndpoint(url, "eu-west-1", "kinesis")
        assert await access.target(operation, parameters) is found


async def test_calls_of_dynamodb_streams_are_signed_for_dynamodb() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in BARE.items():
            patch.setenv(name, value)
        clients = make_clients(Endpoints("eu-west-1"), changes=True)
    service = clients.of_changes
    assert service is not None
    found = await AwsAccess(service, CallLimiters().kinesis).target("GetRecords", {"ShardIterator": "i"})
    assert found == ServiceEndpoint(
        "https://streams.dynamodb.eu-west-1.amazonaws.com/", "eu-west-1", "dynamodb"
    )
    clients.close()


async def test_parameters_that_the_sdk_refuses_are_an_invalid_request() -> None:
    with opened() as clients, pytest.raises(InvalidRequest):
        await AwsAccess(clients.of_kinesis, CallLimiters().kinesis).target("GetRecords", {"ShardIterator": 7})


async def test_the_sdks_own_calls_are_not_stopped() -> None:
    with opened("http://127.0.0.1:1") as clients:
        AwsAccess(clients.of_kinesis, CallLimiters().kinesis)
        with pytest.raises(Exception, match="Could not connect"):
            clients.kinesis.list_streams()


async def test_fixed_credentials_are_taken_as_they_are() -> None:
    with opened() as clients:
        access = AwsAccess(clients.of_kinesis, CallLimiters().kinesis)
        assert await access.keys() == AccessKeys("AKID", "secret")
        assert await access.keys() is await access.keys()


class Renewals:
    """Temporary credentials that count how often they were renewed."""

    def __init__(self, *, lives_s: float) -> None:
        self.count = 0
        self.lives_s = lives_s
        self.before: Callable[[], None] = lambda: None

    def __call__(self) -> dict[str, str]:
        self.count += 1
        self.before()
        expires = datetime.now(UTC) + timedelta(seconds=self.lives_s)  # noqa: TID251 - the SDK compares with it
        return {
            "access_key": f"AKID{self.count}",
            "secret_key": "secret",
            "token": "token",
            "expiry_time": expires.isoformat(),
        }


def with_credentials(clients: Clients, renewals: Renewals) -> Clients:
    credentials = RefreshableCredentials.create_from_metadata(renewals(), renewals, "test")
    return Clients(clients.kinesis, clients.dynamodb, credentials, credentials, None)


async def test_credentials_that_last_are_not_renewed() -> None:
    renewals = Renewals(lives_s=7200)
    with opened() as clients:
        access = AwsAccess(with_credentials(clients, renewals).of_kinesis, CallLimiters().kinesis)
        for _ in range(3):
            assert await access.keys() == AccessKeys("AKID1", "secret", "token")
    assert renewals.count == 1


async def test_calls_go_on_with_what_is_valid_while_credentials_are_renewed() -> None:
    renewals = Renewals(lives_s=60)  # so that they are always about to end
    with opened() as clients:
        access = AwsAccess(with_credentials(clients, renewals).of_kinesis, CallLimiters().kinesis)
        first = await access.keys()
        seen: list[AccessKeys] = []

        async def another() -> None:
            seen.append(await access.keys())

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(another)
        assert first == AccessKeys("AKID2", "secret", "token")
        assert seen.count(first) == 4
        assert renewals.count == 3


async def test_credentials_that_another_service_renewed_are_used() -> None:
    """The SDK's own calls and those of the other services share credentials: whoever comes first renews them."""
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    issued = iter(range(2, 9))

    def renewed() -> dict[str, str]:
        expires = now + timedelta(hours=6)
        return {
            "access_key": f"AKID{next(issued)}",
            "secret_key": "secret",
            "token": "token",
            "expiry_time": expires.isoformat(),
        }

    shared = RefreshableCredentials(
        "AKID1", "secret", "token", now + timedelta(hours=6), renewed, "test", time_fetcher=lambda: now
    )
    with opened() as clients:
        prepared = Clients(clients.kinesis, clients.dynamodb, shared, shared, None)
        reads, writes = (
            AwsAccess(prepared.of_kinesis, CallLimiters().kinesis),
            AwsAccess(prepared.of_dynamodb, CallLimiters().leases.reads),
        )
        assert await reads.keys() == await writes.keys() == AccessKeys("AKID1", "secret", "token")
        now += timedelta(hours=5, minutes=50)
        assert await writes.keys() == AccessKeys("AKID2", "secret", "token")
        assert await reads.keys() == AccessKeys("AKID2", "secret", "token")
        assert await reads.keys() is await reads.keys(), "nothing is made anew while nothing is new"


async def test_credentials_that_cannot_be_renewed_any_more_are_denied() -> None:
    def broken() -> None:
        raise OSError("no such host")

    renewals = Renewals(lives_s=-1)
    with opened() as clients:
        prepared = with_credentials(clients, renewals)
        renewals.before = broken
        with pytest.raises(Exception, match="no such host"):
            await AwsAccess(prepared.of_kinesis, CallLimiters().kinesis).keys()


async def test_empty_credentials_are_denied() -> None:
    with opened() as clients:
        empty = Clients(clients.kinesis, clients.dynamodb, Credentials("", ""), clients.credentials, None)
        with pytest.raises(AccessDenied):
            await AwsAccess(empty.of_kinesis, CallLimiters().kinesis).keys()


async def test_connections_are_verified() -> None:
    with opened() as clients:
        access = AwsAccess(clients.of_kinesis, CallLimiters().kinesis)
        context = access.tls()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert access.tls() is context


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({}, "https://kinesis.eu-west-1.amazonaws.com/", {}),
        (
            {"HTTPS_PROXY": "http://proxy:3128"},
            "https://kinesis.eu-west-1.amazonaws.com/",
            {"https": "http://proxy:3128"},
        ),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://localhost:1/", {}),
        (
            {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".amazonaws.com"},
            "https://kinesis.eu-west-1.amazonaws.com/",
            {},
        ),
    ],
)
def test_proxies_are_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: dict[str, str]
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxies_for(ServiceEndpoint(url, "eu-west-1", "kinesis")) == expected
