"""Which IAM actions are missing.

IAM is asked first. If that is not allowed, each action is tried with a call that cannot succeed: something that does
not exist, or arguments that the service refuses. Only "access denied" counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local.demo.stream import in_thread
from kcl_prove.parts import ProveError
from kcl_prove.stage import NAME_STARTS, Clients, Scene

_KINESIS: Final = (
    *("CreateStream", "AddTagsToStream", "DeleteStream", "DescribeStreamSummary", "ListShards"),
    *("PutRecords", "GetShardIterator", "GetRecords"),
)
_DYNAMODB: Final = (
    *("CreateTable", "DescribeTable", "UpdateTable", "DeleteTable", "TagResource"),
    *("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query", "Scan"),
)
EVERY_SCENE: Final = frozenset(
    {*(f"kinesis:{name}" for name in _KINESIS), *(f"dynamodb:{name}" for name in _DYNAMODB)}
)
_GLUE: Final = frozenset({"glue:DeleteRegistry"})
_FIS: Final = frozenset(
    f"fis:{name}"
    for name in ("ListExperimentTemplates", "ListExperiments", "StopExperiment", "DeleteExperimentTemplate")
)
_NOBODY: Final = f"{NAME_STARTS}permission"
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized", "UnauthorizedAccess"}
)
_WRONG_KEYS: Final = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "SignatureDoesNotMatch"),
        *("UnrecognizedClientException", "InvalidSignatureException", "IncompleteSignature", "AuthFailure"),
    }
)
_NAMED: Final = re.compile(r"not authorized to perform:? ([a-z0-9-]+:[A-Za-z]+)")
_ROLE: Final = re.compile(r"arn:(?P<partition>[^:]+):sts::(?P<account>\d+):assumed-role/(?P<role>[^/]+)/")


@dataclass(frozen=True, slots=True)
class Caller:
    """`role_arn`: of the role that FIS works with."""

    arn: str
    account: str
    region: str
    role_arn: str | None = None

    @property
    def partition(self) -> str:
        return self.arn.split(":")[1]

    def of(self, service: str, rest: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{rest}"


def needed_actions(scenes: Iterable[Scene], caller: Caller) -> tuple[str, ...]:
    found = set(EVERY_SCENE)
    for scene in scenes:
        found |= scene.actions
    services = {action.partition(":")[0] for action in found}
    found |= _GLUE if "glue" in services else frozenset()
    found |= _FIS | {"iam:PassRole"} if "fis" in services and caller.role_arn else frozenset()
    return tuple(sorted(found))


async def caller_of(clients: Clients, region: str, role_arn: str | None) -> Caller:
    """ProveError without usable credentials. It needs no permission."""
    try:
        answer = await in_thread(clients("sts").get_caller_identity)
    except (ClientError, BotoCoreError) as error:
        raise ProveError(
            f"no usable AWS credentials ({error}); set AWS_PROFILE or --profile, or try `kcl-daemon prove --local`"
        ) from error
    return Caller(answer["Arn"], answer["Account"], region, role_arn)


async def missing_actions(clients: Clients, actions: Iterable[str], caller: Caller) -> tuple[str, ...]:
    """ProveError if the credentials are of no use."""
    wanted = tuple(actions)
    simulated = await in_thread(_simulated, clients, wanted, caller)
    if simulated is not None:
        return simulated
    missing: set[str] = set()
    for action in wanted:
        missing |= await in_thread(_probed, clients, action, caller)
    return tuple(sorted(missing))


def resources(action: str, caller: Caller) -> tuple[str, ...]:
    """`*`: the call names several things, or one that has only an ID."""
    service, stream = action.partition(":")[0], caller.of("kinesis", f"stream/{NAME_STARTS}*")
    table = caller.of("dynamodb", f"table/{NAME_STARTS}*")
    special = {
        "kinesis:SubscribeToShard": (f"{stream}/consumer/*",),
        "kinesis:DeregisterStreamConsumer": (f"{stream}/consumer/*",),
        "kinesis:DescribeStreamConsumer": (stream, f"{stream}/consumer/*"),
        "kinesis:ListStreams": ("*",),
        "dynamodb:ListTables": ("*",),
        "dynamodb:Query": (f"{table}/index/*",),
        "iam:PassRole": (caller.role_arn or "*",),
    }
    return special.get(action) or {"kinesis": (stream,), "dynamodb": (table,)}.get(service, ("*",))


def policy(actions: Iterable[str], caller: Caller) -> dict[str, Any]:
    by_resources: dict[tuple[str, ...], list[str]] = {}
    for action in actions:
        by_resources.setdefault(resources(action, caller), []).append(action)
    statements = [
        {"Effect": "Allow", "Action": sorted(names), "Resource": list(where)}
        for where, names in by_resources.items()
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def _simulated(clients: Clients, actions: tuple[str, ...], caller: Caller) -> tuple[str, ...] | None:
    """None: IAM may not be asked, or knows no policies of such a caller."""
    source = _policy_source(clients, caller)
    if source is None:
        return None
    missing: set[str] = set()
    by_resource: dict[str, list[str]] = {}
    for action in actions:
        for resource in resources(action, caller):
            by_resource.setdefault(resource.replace("*", "x") if ":" in resource else resource, []).append(
                action
            )
    pages = clients("iam").get_paginator("simulate_principal_policy")
    try:
        for resource, names in by_resource.items():
            context = _context(caller)
            for page in pages.paginate(
                PolicySourceArn=source, ActionNames=names, ResourceArns=[resource], ContextEntries=context
            ):
                missing |= {
                    each["EvalActionName"] for each in page["EvaluationResults"] if not _allowed(each)
                }
    except (ClientError, BotoCoreError) as error:
        _raise_if_keys_are_wrong(error)
        return None
    return tuple(sorted(missing))


def _context(caller: Caller) -> list[dict[str, Any]]:
    entries = {"aws:RequestedRegion": caller.region, "iam:PassedToService": "fis.amazonaws.com"}
    return [
        {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for name, value in entries.items()
    ]


def _allowed(result: Mapping[str, Any]) -> bool:
    by_organization = result.get("OrganizationsDecisionDetail", {}).get("AllowedByOrganizations", True)
    by_boundary = result.get("PermissionsBoundaryDecisionDetail", {}).get(
        "AllowedByPermissionsBoundary", True
    )
    return result["EvalDecision"] == "allowed" and bool(by_organization) and bool(by_boundary)


def _policy_source(clients: Clients, caller: Caller) -> str | None:
    match = _ROLE.match(caller.arn)
    if match is None:
        return caller.arn if f":iam::{caller.account}:user/" in caller.arn else None
    try:
        role: str = clients("iam").get_role(RoleName=match["role"])["Role"]["Arn"]
    except (ClientError, BotoCoreError) as error:
        _raise_if_keys_are_wrong(error)
        return f"arn:{match['partition']}:iam::{match['account']}:role/{match['role']}"
    return role


def _probed(clients: Clients, action: str, caller: Caller) -> frozenset[str]:
    service, _, operation = action.partition(":")
    arguments = probe_arguments(caller).get(action)
    if arguments is None:
        return frozenset()
    try:
        getattr(clients(service), xform_name(operation))(**arguments)
    except ClientError as error:
        _raise_if_keys_are_wrong(error)
        if error.response.get("Error", {}).get("Code") not in _DENIED:
            return frozenset()
        named = _NAMED.search(str(error))
        return frozenset({named[1] if named else action})
    except BotoCoreError as error:
        raise ProveError(f"{service} cannot be reached: {error}") from error
    return frozenset()


def _raise_if_keys_are_wrong(error: Exception) -> None:
    if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _WRONG_KEYS:
        raise ProveError(f"AWS refuses these credentials: {error}") from error


def probe_arguments(caller: Caller) -> Mapping[str, Mapping[str, Any]]:
    """`_NOBODY` exists nowhere."""
    return {**_kinesis_probes(caller), **_dynamodb_probes(caller), **dict(_other_probes(caller))}


def _kinesis_probes(caller: Caller) -> dict[str, Mapping[str, Any]]:
    name, arn = {"StreamName": _NOBODY}, {"StreamARN": caller.of("kinesis", f"stream/{_NOBODY}")}
    shard, iterator = "shardId-000000000000", {"ShardIteratorType": "LATEST"}
    consumer = {"ConsumerARN": f"{arn['StreamARN']}/consumer/{_NOBODY}:1"}
    # On demand there is no ShardCount, and `aws:` is reserved: refused for two reasons.
    refused = {"ShardCount": 1, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "Tags": {"aws:x": "x"}}
    probes: dict[str, Mapping[str, Any]] = {
        "CreateStream": {**name, **refused},
        "AddTagsToStream": {**name, "Tags": {"x": "x"}},
        "DeleteStream": name,
        "DescribeStream": name,
        "DescribeStreamSummary": name,
        "ListShards": name,
        "ListTagsForStream": name,
        "PutRecord": {**name, "Data": b"x", "PartitionKey": "x"},
        "PutRecords": {**name, "Records": [{"Data": b"x", "PartitionKey": "x"}]},
        "GetShardIterator": {**name, "ShardId": shard, **iterator},
        "GetRecords": {**arn, "ShardIterator": "AAAA"},
        "SplitShard": {**name, "ShardToSplit": shard, "NewStartingHashKey": "1"},
        "MergeShards": {**name, "ShardToMerge": shard, "AdjacentShardToMerge": shard},
        "UpdateShardCount": {**name, "TargetShardCount": 1, "ScalingType": "UNIFORM_SCALING"},
        "UpdateStreamMode": {**arn, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}},
        "UpdateMaxRecordSize": {**arn, "MaxRecordSizeInKiB": 1024},
        "RegisterStreamConsumer": {**arn, "ConsumerName": _NOBODY},
        "DescribeStreamConsumer": {**arn, "ConsumerName": _NOBODY},
        "DeregisterStreamConsumer": consumer,
        "ListStreamConsumers": arn,
        "SubscribeToShard": {**consumer, "ShardId": shard, "StartingPosition": {"Type": "LATEST"}},
    }
    return {f"kinesis:{each}": arguments for each, arguments in probes.items()}


def _dynamodb_probes(caller: Caller) -> dict[str, Mapping[str, Any]]:
    name, key = {"TableName": _NOBODY}, {"leaseKey": {"S": "x"}}
    arn = {"ResourceArn": caller.of("dynamodb", f"table/{_NOBODY}")}
    # Its key is no defined attribute: refused.
    refused = {"KeySchema": [{"AttributeName": "a", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST"}
    condition = {"KeyConditionExpression": "leaseKey = :x", "ExpressionAttributeValues": {":x": {"S": "x"}}}
    probes: dict[str, Mapping[str, Any]] = {
        "CreateTable": {
            **name,
            **refused,
            "AttributeDefinitions": [{"AttributeName": "b", "AttributeType": "S"}],
        },
        "DescribeTable": name,
        "UpdateTable": {**name, "BillingMode": "PAY_PER_REQUEST"},
        "DeleteTable": name,
        "TagResource": {**arn, "Tags": [{"Key": "x", "Value": "x"}]},
        "ListTagsOfResource": arn,
        "GetItem": {**name, "Key": key},
        "PutItem": {**name, "Item": key},
        "UpdateItem": {**name, "Key": key},
        "DeleteItem": {**name, "Key": key},
        "Query": {**name, **condition},
        "Scan": {**name, "Limit": 1},
    }
    return {f"dynamodb:{each}": arguments for each, arguments in probes.items()}


def _other_probes(caller: Caller) -> Iterator[tuple[str, Mapping[str, Any]]]:
    registry, nothing = {"RegistryName": _NOBODY}, "00000000-0000-0000-0000-000000000000"
    schema = {"SchemaId": {**registry, "SchemaName": _NOBODY}}
    yield "glue:CreateRegistry", {**registry, "Tags": {"aws:x": "x"}}
    yield "glue:GetRegistry", {"RegistryId": registry}
    yield "glue:DeleteRegistry", {"RegistryId": registry}
    made = {"RegistryId": registry, "SchemaName": _NOBODY, "DataFormat": "JSON", "SchemaDefinition": "{}"}
    yield "glue:CreateSchema", {**made, "Compatibility": "NONE"}
    yield "glue:DeleteSchema", schema
    yield "glue:RegisterSchemaVersion", {**schema, "SchemaDefinition": "{}"}
    yield "glue:GetSchemaVersion", {"SchemaVersionId": nothing}
    tags = {"ResourceArn": caller.of("glue", f"registry/{_NOBODY}"), "TagsToAdd": {"x": "x"}}
    yield "glue:TagResource", tags
    yield "iam:GetRole", {"RoleName": _NOBODY}
    role = caller.role_arn or f"arn:{caller.partition}:iam::{caller.account}:role/{_NOBODY}"
    template = {"clientToken": _NOBODY, "description": _NOBODY, "roleArn": role, "stopConditions": []}
    yield "fis:CreateExperimentTemplate", {**template, "actions": {}}
    yield "fis:DeleteExperimentTemplate", {"id": "EXT0"}
    yield "fis:TagResource", {"resourceArn": caller.of("fis", "experiment-template/EXT0"), "tags": {"x": "x"}}
    yield "fis:ListExperimentTemplates", {"maxResults": 1}
    yield "fis:ListExperiments", {"maxResults": 1}
    yield "fis:StartExperiment", {"clientToken": _NOBODY, "experimentTemplateId": "EXT0"}
    yield "fis:GetExperiment", {"id": "EXP0"}
    yield "fis:StopExperiment", {"id": "EXP0"}
