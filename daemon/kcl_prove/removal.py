from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from kcl_local.demo.stream import in_thread
from kcl_prove.inventory import Inventory, Item
from kcl_prove.parts import Kind
from kcl_prove.stage import NAME_STARTS, TAG, Clients

WITHIN_S: Final = 300.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_GONE: Final = frozenset({"ResourceNotFoundException", "EntityNotFoundException"})
# Waiting does not help.
_FINAL: Final = frozenset(
    {
        *("AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "ExpiredTokenException"),
        *("ExpiredToken", "ValidationException", "InvalidArgumentException", "InvalidInputException"),
    }
)
_OURS: Final = re.compile(rf"{NAME_STARTS}[0-9a-f]{{8}}(?:-|$)")
_STOPPABLE: Final = frozenset({"pending", "initiating", "running"})


class StillThere(Exception): ...


@dataclass(frozen=True, slots=True)
class Remover:
    """`by_hand`: the command that does the same, with the item's name for {}."""

    remove: Callable[[Clients, str], None]
    by_hand: str


@dataclass(frozen=True, slots=True)
class NotRemoved:
    item: Item
    why: str
    by_hand: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """Not `tagged`: only its name says that a run made it."""

    item: Item
    tagged: bool


def _remove_table(clients: Clients, name: str) -> None:
    status = clients("dynamodb").describe_table(TableName=name)["Table"]["TableStatus"]
    if status != "DELETING":
        clients("dynamodb").delete_table(TableName=name)


def _remove_template(clients: Clients, name: str) -> None:
    """A template gets its ID only when it is made, so it is found by its tag. Its experiments stop first."""
    fis = clients("fis")
    for template in list(_all(fis, "list_experiment_templates", "experimentTemplates")):
        if template.get("tags", {}).get("Name") == name:
            for each in list(_all(fis, "list_experiments", "experiments")):
                if each["experimentTemplateId"] == template["id"] and each["state"]["status"] in _STOPPABLE:
                    fis.stop_experiment(id=each["id"])
            fis.delete_experiment_template(id=template["id"])


def _remove_files(_clients: Clients, path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if Path(path).exists():
        raise StillThere("some of its files cannot be deleted")


REMOVERS: Final[Mapping[Kind, Remover]] = {
    "fis template": Remover(
        _remove_template, "aws fis list-experiment-templates, then aws fis delete-experiment-template --id ID"
    ),
    "consumer": Remover(
        lambda clients, arn: clients("kinesis").deregister_stream_consumer(ConsumerARN=arn),
        "aws kinesis deregister-stream-consumer --consumer-arn {}",
    ),
    "stream": Remover(
        lambda clients, name: clients("kinesis").delete_stream(StreamName=name, EnforceConsumerDeletion=True),
        "aws kinesis delete-stream --enforce-consumer-deletion --stream-name {}",
    ),
    "table": Remover(_remove_table, "aws dynamodb delete-table --table-name {}"),
    "schema registry": Remover(
        lambda clients, name: clients("glue").delete_registry(RegistryId={"RegistryName": name}),
        "aws glue delete-registry --registry-id RegistryName={}",
    ),
    "files": Remover(_remove_files, "rm -r {}"),
}
"""In the order of removal."""


async def remove_all(
    inventory: Inventory,
    clients: Clients,
    *,
    which: Callable[[Item], bool] = lambda _: True,
    within_s: float = WITHIN_S,
) -> tuple[NotRemoved, ...]:
    """What is not there counts as removed."""
    items = tuple(filter(which, inventory.items))
    return await remove_items(items, clients, inventory.run.region, inventory.removed, within_s=within_s)


async def remove_items(
    items: Iterable[Item],
    clients: Clients,
    region: str,
    gone: Callable[[Item], None] = lambda _: None,
    *,
    within_s: float = WITHIN_S,
) -> tuple[NotRemoved, ...]:
    order = list(REMOVERS)
    failed: list[NotRemoved] = []
    deadline = anyio.current_time() + within_s
    for item in sorted(items, key=lambda each: order.index(each.kind)):
        why = await _removed(item, clients, deadline)
        if why is None:
            gone(item)
        else:
            failed.append(_failed(item, why, region))
    return tuple(failed)


def _failed(item: Item, why: str, region: str) -> NotRemoved:
    command = REMOVERS[item.kind].by_hand.format(item.name)
    return NotRemoved(item, why, command if item.kind == "files" else f"{command} --region {region}")


async def _removed(item: Item, clients: Clients, deadline: float) -> str | None:
    """Why it is not. Tries at least once."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            await in_thread(REMOVERS[item.kind].remove, clients, item.name)
        except EndpointConnectionError:
            if clients.endpoints:
                return None  # local endpoints have ended, with all that was in them
            why, is_final = "the service cannot be reached", False
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _GONE:
                return None
            why, is_final = str(error), code in _FINAL
        except (BotoCoreError, StillThere) as error:
            why, is_final = str(error), False
        else:
            return None
        if is_final or anyio.current_time() + pause_s > deadline:
            return why
        await anyio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def leftovers(clients: Clients) -> tuple[tuple[Leftover, ...], tuple[str, ...]]:
    """What has a name of ours in this account and region, and why some of it could not be looked through."""
    found: list[Leftover] = []
    problems: list[str] = []
    for look in (_streams, _tables, _registries, _templates):
        try:
            found += await in_thread(list[Leftover], look(clients))
        except (ClientError, BotoCoreError) as error:
            problems.append(str(error))
    return tuple(found), tuple(problems)


def run_of(name: str) -> str | None:
    match = _OURS.match(name)
    return match and match[0].rstrip("-")


def _streams(clients: Clients) -> Iterator[Leftover]:
    kinesis = clients("kinesis")
    for name in filter(run_of, _all(kinesis, "list_streams", "StreamNames")):
        tags = kinesis.list_tags_for_stream(StreamName=name)["Tags"]
        yield Leftover(Item("stream", name), _has_tag(tags))


def _tables(clients: Clients) -> Iterator[Leftover]:
    dynamodb = clients("dynamodb")
    for name in filter(run_of, _all(dynamodb, "list_tables", "TableNames")):
        arn = dynamodb.describe_table(TableName=name)["Table"]["TableArn"]
        tags = dynamodb.list_tags_of_resource(ResourceArn=arn)["Tags"]
        yield Leftover(Item("table", name), _has_tag(tags))


def _registries(clients: Clients) -> Iterator[Leftover]:
    glue = clients("glue")
    for each in _all(glue, "list_registries", "Registries"):
        if run_of(each["RegistryName"]):
            tags = glue.get_tags(ResourceArn=each["RegistryArn"])["Tags"]
            yield Leftover(Item("schema registry", each["RegistryName"]), TAG in tags)


def _templates(clients: Clients) -> Iterator[Leftover]:
    for each in _all(clients("fis"), "list_experiment_templates", "experimentTemplates"):
        tags = each.get("tags", {})
        if run_of(tags.get("Name", "")):
            yield Leftover(Item("fis template", tags["Name"]), TAG in tags)


def _has_tag(tags: Iterable[Mapping[str, str]]) -> bool:
    return any(tag["Key"] == TAG for tag in tags)


def _all(client: Any, operation: str, key: str) -> Iterator[Any]:
    for page in client.get_paginator(operation).paginate():
        yield from page[key]
