"""A new call in `kcl_daemon.aws` needs a permission here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import click

from kcl_daemon.cli.common import json_text, with_settings
from kcl_daemon.cli.replay_settings import ReplayRange, replay_settings
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.services import CredentialsSource
from kcl_daemon.config.settings import Settings
from kcl_daemon.source import Source, source_named

Service = Literal["kinesis", "dynamodb", "glue", "cloudwatch"]
_SERVICES: Final[tuple[Service, ...]] = ("kinesis", "dynamodb", "glue", "cloudwatch")

_ARN: Final = re.compile(r"arn:(?P<partition>[^:]+):(?:kinesis|dynamodb):")
_PARTITIONS: Final = (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov"))
_ROWS: Final = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Scan")
_MAKING: Final = ("CreateTable", "DescribeTable")


def build_policy(
    settings: Settings, services: tuple[Service, ...], *, account: str | None = None
) -> dict[str, Any]:
    """`account` owns the tables and the streams given by name; None: any."""
    statements: list[dict[str, Any]] = []
    if "kinesis" in services:
        statements += _sources(settings, account)
        statements += _letters(settings, account, ("DeadLetters", "DeadLetterOverflow"), reads=False)
        statements += _landing(settings)
    if "dynamodb" in services:
        statements += _dynamodb(settings, account)
    if "glue" in services and settings.schemas.are_resolved:
        # A record's header names only a version, not its schema.
        statements.append(_statement("ReadSchemas", "glue", ("GetSchemaVersion",), ["*"]))
    if "cloudwatch" in services:
        statements += _cloudwatch(settings)
    return {"Version": "2012-10-17", "Statement": statements}


def replay_policy(settings: Settings, *, account: str | None = None) -> dict[str, Any]:
    span = ReplayRange(("", ""), 0.0, 0.0)
    mine = replay_settings(settings, "*", span, (), None)
    document = build_policy(mine, ("kinesis", "dynamodb", "glue"), account=account)
    table, *_ = _tables(mine, account)
    document["Statement"].append(_statement("RemoveTable", "dynamodb", ("DeleteTable",), [table]))
    return document


def letters_policy(settings: Settings, *, account: str | None = None) -> dict[str, Any]:
    statements = _letters(settings, account, ("Letters", "LetterData"), reads=True)
    return {"Version": "2012-10-17", "Statement": list(statements)}


def capacity_policy(settings: Settings, *, account: str | None = None) -> dict[str, Any]:
    statements = [
        _statement("Tables", "dynamodb", ("DescribeTable", "GetItem", "Scan"), _tables(settings, account))
    ]
    if settings.capacity.scale_to_zero:
        arn = partial(_arn, settings, account)
        for source in _read(settings):
            statements += (_statement(*right) for right in source.peek_rights(settings, arn))
    return {"Version": "2012-10-17", "Statement": statements}


def watch_policy(settings: Settings, *, account: str | None = None) -> dict[str, Any]:
    polls = replace(settings, retrieval=replace(settings.retrieval, mode=RetrievalMode.POLLING))
    statements = [
        _statement("Tables", "dynamodb", ("DescribeTable", "GetItem", "Scan"), _tables(settings, account)),
        *_sources(polls, account),
        *_cloudwatch(settings),
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _arn(settings: Settings, account: str | None, service: str, rest: str, region: str | None = None) -> str:
    arns = (settings.stream_arn, *(each.arn for each in settings.streams.arns))
    match = _ARN.match(next((arn for arn in arns if arn is not None), ""))
    region = region or settings.endpoints.of_kinesis.region_name or settings.endpoints.region_name or "*"
    partition = next((name for prefix, name in _PARTITIONS if region.startswith(prefix)), "aws")
    if match is not None:
        partition = match["partition"]
    return f"arn:{partition}:{service}:{region}:{account or '*'}:{rest}"


def is_for_every_account(document: Mapping[str, Any]) -> bool:
    arns = (arn.split(":") for each in document["Statement"] for arn in each["Resource"])
    return any(len(parts) > 4 and parts[4] == "*" for parts in arns)


def _read(settings: Settings) -> Iterable[Source]:
    return dict.fromkeys((source_named("kinesis"), *(each.source for each in settings.stream_refs)))


def _sources(settings: Settings, account: str | None) -> Iterator[dict[str, Any]]:
    arn = partial(_arn, settings, account)
    for source in _read(settings):
        for right in source.rights(settings, arn):
            yield _statement(*right)


def _letters(
    settings: Settings, account: str | None, names: tuple[str, str], *, reads: bool
) -> Iterator[dict[str, Any]]:
    def arn(service: str, rest: str, region: str | None, owner: str | None) -> str:
        return _arn(settings, owner or account, service, rest, region)

    places = (settings.failures.dead_letters, settings.failures.dead_letter_overflow)
    for name, place in zip(names, places, strict=True):
        for sid, service, actions, resource in () if place is None else place.rights(arn, reads=reads):
            yield _statement(f"{name}{sid}", service, actions, [resource])


def keeper_policy(settings: Settings, *, account: str | None = None) -> dict[str, Any]:
    del account  # it is not in the names of buckets
    return {"Version": "2012-10-17", "Statement": list(_landing(settings, "DeleteObject"))}


def _landing(settings: Settings, *more: str) -> Iterator[dict[str, Any]]:
    """Without ListBucket, an object that is not there looks like one that may not be read."""
    place = settings.landing.bucket_and_prefix
    if place is None:
        return
    bucket = f"arn:{_arn(settings, None, 's3', '').split(':')[1]}:s3:::{place[0]}"
    yield _statement("Landing", "s3", ("GetObject", "PutObject", *more), [f"{bucket}/{place[1]}*"])
    yield _statement("LandingList", "s3", ("ListBucket",), [bucket])
    key = settings.landing.encryption or ""
    if key.startswith("arn:"):
        yield _statement("LandingKey", "kms", ("GenerateDataKey", "Decrypt"), [key])


def _dynamodb(settings: Settings, account: str | None) -> Iterator[dict[str, Any]]:
    tables = settings.tables
    leases, workers, coordinator = arns = _tables(settings, account)
    yield _statement("Tables", "dynamodb", (*_MAKING, *_ROWS), arns)
    # UpdateTable only adds the index by owner to a KCL 2.x lease table.
    yield _statement("OwnerIndex", "dynamodb", ("UpdateTable",), [leases])
    yield _statement("FindOwnLeases", "dynamodb", ("Query",), [f"{leases}/index/*"])
    options = ((leases, tables.leases), (workers, tables.worker_metrics), (coordinator, tables.coordinator))
    recovered = [arn for arn, each in options if each.point_in_time_recovery]
    tagged = [arn for arn, each in options if each.tags]
    if recovered:
        yield _statement("Recovery", "dynamodb", ("UpdateContinuousBackups",), recovered)
    if tagged:
        yield _statement("Tags", "dynamodb", ("TagResource",), tagged)
    if settings.changes.snapshot:
        arns = source_named("dynamodb").arns(settings, partial(_arn, settings, account))
        scanned = [each.partition("/stream/")[0] for each in arns]
        yield _statement("Snapshot", "dynamodb", ("DescribeTable", "Scan"), scanned)
    if tables.migrate_all:
        yield _statement("Migration", "dynamodb", ("ConditionCheckItem",), arns)


def _tables(settings: Settings, account: str | None) -> list[str]:
    region = settings.endpoints.of_dynamodb.region_name or settings.endpoints.region_name or "*"
    return [
        _arn(settings, account, "dynamodb", f"table/{name}", region)
        for name in (settings.lease_table, settings.worker_metrics_table, settings.coordinator_table)
    ]


def _cloudwatch(settings: Settings) -> Iterator[dict[str, Any]]:
    """PutMetricData has no resources; the namespace restricts it."""
    if settings.metrics.level is MetricsLevel.NONE:
        return
    namespace = settings.metrics.namespace or settings.application_name
    bound = {"StringEquals": {"cloudwatch:namespace": namespace}}
    yield {**_statement("Metrics", "cloudwatch", ("PutMetricData",), ["*"]), "Condition": bound}


def _statement(sid: str, service: str, actions: tuple[str, ...], resources: list[str]) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in actions],
        "Resource": resources,
    }


_POLICIES: Final = {
    "replay": replay_policy, "letters": letters_policy, "landing": keeper_policy,
    "capacity": capacity_policy, "watch": watch_policy,
}  # fmt: skip


@click.command("iam-policy")
@with_settings
@click.option(
    "--service", type=click.Choice(_SERVICES), help="Only for this service, if the others use another role."
)
@click.option(
    "--account",
    metavar="DIGITS",
    help="Account of the daemon's credentials, and so of its tables and of streams given by name. Default: any account.",
)
@click.option("--replay", "whose", flag_value="replay", help="For `kcl-daemon replay` instead of the daemon.")
@click.option("--letters", "whose", flag_value="letters", help="For `kcl-daemon letters` instead.")
@click.option("--landing", "whose", flag_value="landing", help="For `kcl-daemon landing` instead.")
@click.option("--watch", "whose", flag_value="watch", help="For `kcl-daemon watch` instead.")
@click.option("--capacity", "whose", flag_value="capacity", help="For `kcl-daemon capacity` instead.")
def iam_policy(
    settings: Settings, *, service: Service | None, account: str | None, whose: str | None = None
) -> None:
    """Print the minimal IAM policy for a daemon with this properties file, as JSON.

    It allows the daemon to create its tables. If they exist and have their index, you can remove `CreateTable` and
    `UpdateTable`.
    """
    if account is not None and (len(account) != 12 or not account.isdecimal()):
        raise click.UsageError("an account has 12 digits")
    if whose is not None and service is not None:
        raise click.UsageError(f"--{whose} is for all services; leave --service out")
    if whose is not None:
        document = _POLICIES[whose](settings, account=account)
    else:
        document = build_policy(settings, _SERVICES if service is None else (service,), account=account)
    click.echo(json_text(document))
    for note in notes(settings, document):
        click.echo(note, err=True)


def notes(settings: Settings, document: Mapping[str, Any]) -> list[str]:
    credentials = settings.endpoints.credentials
    roles = [
        provider.role_arn
        for providers in (credentials.kinesis, credentials.dynamodb, credentials.cloudwatch, credentials.glue)
        for provider in providers
        if provider.source is CredentialsSource.ROLE
    ]
    reported = [f"the host needs sts:AssumeRole for {role}" for role in dict.fromkeys(roles)]
    granted = {action.split(":")[0] for each in document["Statement"] for action in each["Action"]}
    if granted - {"dynamodb", "cloudwatch", "glue"}:
        reported.append(
            "for a KMS key of your own that is not in the file, such as the stream's, also allow kms:Decrypt on it, and "
            "kms:GenerateDataKey if the daemon writes there (letters, landing)"
        )
    if settings.endpoints.region_name is None:
        reported.append(
            "the file sets no region, so the policy allows all regions; set regionName to narrow it"
        )
    if is_for_every_account(document):
        reported.append(
            "the account of the tables, and of streams without an ARN, is unknown, so the policy allows "
            "all accounts; use --account to narrow it"
        )
    return reported
