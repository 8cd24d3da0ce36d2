"""PutMetricData over the daemon's own transport: what CloudWatch gets is what the SDK would send it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from anyio import to_thread

from kcl_daemon.aws.cloudwatch import AwsCloudWatch, datum, open_cloudwatch
from kcl_daemon.aws.session import Services
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, AwsError, InvalidRequest, Throttled, Unavailable
from kcl_daemon.ports import Statistic
from tests.contract.aws_access import REGION, credentials_that_nobody_checks, local_clients
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.transport.scripted import Exchange, Script, Server, serving

pytestmark = pytest.mark.anyio
FEW, MANY = 2, 300


def statistics(count: int) -> list[Statistic]:
    return [
        Statistic(
            "Time",
            "Milliseconds",
            {"Operation": "ProcessTask", "ShardId": f"shardId-{number}"},
            3,
            60.5,
            10,
            30,
        )
        for number in range(count)
    ]


@asynccontextmanager
async def options(script: Script) -> AsyncGenerator[tuple[Server, AwsCloudWatch, Services]]:
    async with serving(script) as server:
        endpoints = Endpoints(REGION, cloudwatch=f"http://127.0.0.1:{server.port}")
        settings = Settings("app", "words", ChildSettings(("true",)), "w-1", endpoints=endpoints)
        with credentials_that_nobody_checks(), local_clients() as clients:
            async with open_cloudwatch(settings, clients, LoopClock(), MemoryLog()) as cloudwatch:
                assert cloudwatch is not None
                yield server, cloudwatch, Services(endpoints)


def headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("packs", [True, False])
async def test_it_is_the_request_that_the_sdk_would_send(
    monkeypatch: pytest.MonkeyPatch, count: int, packs: bool
) -> None:
    monkeypatch.setenv("AWS_DISABLE_REQUEST_COMPRESSION", str(not packs))
    heads: list[dict[str, str]] = []

    async def script(exchange: Exchange) -> None:
        heads.append(headers(exchange.head))
        await exchange.answer()

    reported = statistics(count)
    async with options(script) as (server, cloudwatch, services):
        await cloudwatch.put("app", reported)
        client: Any = services.client("cloudwatch", 1)
        await to_thread.run_sync(
            lambda: client.put_metric_data(
                Namespace="app", MetricData=msgspec.to_builtins([datum(each) for each in reported])
            )
        )
        client.close()
    ours, theirs = heads
    for name in ("x-amz-target", "content-type", "host", "content-encoding"):
        assert ours.get(name) == theirs.get(name), name
    is_packed = packs and count == MANY
    assert ours.get("content-encoding") == ("gzip" if is_packed else None)
    scopes = [re.findall(r"Credential=\w+/\d+/([\w/-]+)", head["authorization"]) for head in heads]
    assert scopes == [["us-east-1/monitoring/aws4_request"]] * 2
    bodies = [json.loads(gzip.decompress(each) if is_packed else each) for each in server.requests]
    assert bodies[0] == bodies[1]
    assert len(bodies[0]["MetricData"]) == count


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        ("400 Bad Request", b'{"__type":"com.amazonaws#Throttling","message":"Rate exceeded"}', Throttled),
        ("400 Bad Request", b'{"__type":"x#InvalidParameterValueException"}', InvalidRequest),
        ("403 Forbidden", b'{"__type":"x#AccessDenied"}', AccessDenied),
        ("500 Oops", b'{"__type":"x#InternalServiceFault"}', Unavailable),
        ("404 Not Found", b'{"__type":"x#ResourceNotFoundException"}', AwsError),
        ("503 Busy", b"<html>", Unavailable),
    ],
)
async def test_refusals_are_reported_in_our_words(status: str, body: bytes, kind: type[AwsError]) -> None:
    async with options(lambda exchange: exchange.answer(body, status)) as (server, cloudwatch, _):
        with pytest.raises(kind, match="PutMetricData") as raised:
            await cloudwatch.put("app", statistics(FEW))
    assert type(raised.value) is kind
    assert len(server.requests) == 1, "what may have taken effect is not sent again"


async def test_credentials_that_are_missing_are_reported_at_each_call_and_used_once_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(lambda exchange: exchange.answer()) as server:
        endpoints = Endpoints(REGION, cloudwatch=f"http://127.0.0.1:{server.port}")
        settings = Settings("app", "words", ChildSettings(("true",)), "w-1", endpoints=endpoints)
        with local_clients(kinesis="https://kinesis.us-east-1.amazonaws.com") as clients:
            async with open_cloudwatch(settings, clients, LoopClock(), MemoryLog()) as cloudwatch:
                assert cloudwatch is not None
                for name, value in (("CONFIG_FILE", "/nowhere"), ("SHARED_CREDENTIALS_FILE", "/nowhere")):
                    monkeypatch.setenv(f"AWS_{name}", value)
                monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
                for _ in range(2):
                    with pytest.raises(AccessDenied, match="no AWS credentials"):
                        await cloudwatch.put("app", statistics(FEW))
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
                monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
                await cloudwatch.put("app", statistics(FEW))
    assert len(server.requests) == 1
