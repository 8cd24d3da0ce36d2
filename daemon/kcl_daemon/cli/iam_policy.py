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


@click.command("iam-policy", short_help="Print the permissions that the daemon needs.")
@with_file
@click.option(
    "--service",
    type=click.Choice(["kinesis", "dynamodb", "glue", "cloudwatch"]),
    help="Only for this service, where another role is used for the others.",
)
@click.option(
    "--account",
    metavar="DIGITS",
    help="The account that the daemon's credentials are of: that of its tables, and of streams given by name. Else any.",
)
def iam_policy(
    *, file: Path | None, properties_file: Path | None, service: Service | None, account: str | None
) -> None:
    """Print the least IAM policy with which a daemon of this properties file works, as JSON.

    It allows the daemon to make its tables. Where they exist and have their index, `CreateTable` and `UpdateTable` may
    be taken out.
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
        told.append("the file names no region: the policy is for every one; set regionName to narrow it")
    if is_for_every_account(document):
        told.append(
            "no file names the account of tables, nor of streams without an ARN: the policy is for every one; give "
            "--account to narrow it"
        )
    return told
