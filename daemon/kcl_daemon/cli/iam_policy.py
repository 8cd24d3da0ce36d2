"""`kcl-daemon iam-policy`: the command around `policy`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from kcl_daemon.cli.acting import settings_of, with_file
from kcl_daemon.cli.policy import Service, is_for_every_account, policy
from kcl_daemon.config.access_settings import Source
from kcl_daemon.config.settings import Settings


@click.command("iam-policy", short_help="Print the IAM permissions that the daemon needs.")
@with_file
@click.option(
    "--service",
    type=click.Choice(["kinesis", "dynamodb", "glue", "cloudwatch"]),
    help="Only for this service, if the others use another role.",
)
@click.option(
    "--account",
    metavar="DIGITS",
    help="Account of the daemon's credentials, and so of its tables and of streams given by name. Default: "
    "any account.",
)
def iam_policy(
    *, file: Path | None, properties_file: Path | None, service: Service | None, account: str | None
) -> None:
    """Print the minimal IAM policy for a daemon with this properties file, as JSON.

    It allows the daemon to create its tables. If they exist and have their index, you can remove `CreateTable` and
    `UpdateTable`.
    """
    if account is not None and (len(account) != 12 or not account.isdecimal()):
        raise click.UsageError("an account has 12 digits")
    settings = settings_of(file, properties_file, command="kcl-daemon iam-policy")
    services: tuple[Service, ...] = (
        ("kinesis", "dynamodb", "glue", "cloudwatch") if service is None else (service,)
    )
    document = policy(settings, services, account=account)
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    for note in notes(settings, document):
        click.echo(note, err=True)


def notes(settings: Settings, document: Mapping[str, Any]) -> list[str]:
    """What the document does not tell by itself."""
    credentials = settings.endpoints.credentials
    roles = [
        provider.role_arn
        for providers in (credentials.kinesis, credentials.dynamodb, credentials.cloudwatch, credentials.glue)
        for provider in providers
        if provider.source is Source.ROLE
    ]
    told = [f"the host needs sts:AssumeRole for {role}" for role in dict.fromkeys(roles)]
    if settings.endpoints.region_name is None:
        told.append("the file sets no region, so the policy allows all regions; set regionName to narrow it")
    if is_for_every_account(document):
        told.append(
            "the account of the tables, and of streams without an ARN, is unknown, so the policy allows "
            "all accounts; use --account to narrow it"
        )
    return told
