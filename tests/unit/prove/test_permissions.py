"""Missing permissions are named before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import boto3
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber
from botocore.validate import ParamValidator

from kcl_prove.parts import ProveError
from kcl_prove.permissions import (
    EVERY_SCENE,
    Caller,
    caller_of,
    missing_actions,
    needed_actions,
    policy,
    probe_arguments,
    resources,
)
from kcl_prove.scenes import SCENES
from kcl_prove.stage import Clients
from tests.unit.prove.accounts import REGION, TinyScene

pytestmark = pytest.mark.anyio

USER = Caller("arn:aws:iam::123456789012:user/me", "123456789012", REGION)
ROLE = Caller("arn:aws:sts::123456789012:assumed-role/worker/session", "123456789012", REGION)
ROOT = Caller("arn:aws:iam::123456789012:root", "123456789012", REGION)
ACTIONS = ("kinesis:CreateStream", "kinesis:PutRecords", "dynamodb:Query")


def clients() -> Clients:
    return Clients(boto3.Session("key", "secret", region_name=REGION), {})


def evaluated(name: str, decision: str = "allowed", **more: Any) -> dict[str, Any]:
    return {"EvalActionName": name, "EvalDecision": decision, **more}


def error(code: str, text: str = "no", operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": text}}, operation)


def refusing(
    monkeypatch: pytest.MonkeyPatch, service: Any, refuse: Callable[[str], ClientError | None]
) -> list[str]:
    """Every call of that client fails: as told, else because what it names does not exist."""
    called: list[str] = []

    def call(operation: str, _arguments: object) -> Any:
        called.append(operation)
        raise refuse(operation) or error("ResourceNotFoundException", operation=operation)

    monkeypatch.setattr(service, "_make_api_call", call)
    return called


@pytest.mark.parametrize("action", sorted(probe_arguments(USER)))
def test_a_probe_has_the_shape_that_the_service_takes(action: str) -> None:
    service, _, operation = action.partition(":")
    model = clients()(service).meta.service_model.operation_model(operation)
    report = ParamValidator().validate(dict(probe_arguments(USER)[action]), model.input_shape)
    assert not report.has_errors(), report.generate_report()


def test_every_action_of_every_scene_can_be_probed() -> None:
    wanted = EVERY_SCENE.union(*(scene.actions for scene in SCENES))
    assert wanted - set(probe_arguments(USER)) == {"iam:PassRole"}  # no call of its own


async def test_iam_is_asked_for_the_very_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = clients()
    with Stubber(aws("iam")) as iam:
        stream = f"arn:aws:kinesis:{REGION}:123456789012:stream/kcl-prove-x"
        index = f"arn:aws:dynamodb:{REGION}:123456789012:table/kcl-prove-x/index/x"
        for names, resource, results in (
            (
                ["kinesis:CreateStream", "kinesis:PutRecords"],
                stream,
                [
                    evaluated("kinesis:CreateStream", "implicitDeny"),
                    evaluated(
                        "kinesis:PutRecords", OrganizationsDecisionDetail={"AllowedByOrganizations": False}
                    ),
                ],
            ),
            (["dynamodb:Query"], index, [evaluated("dynamodb:Query")]),
        ):
            asked = {
                "PolicySourceArn": USER.arn,
                "ActionNames": names,
                "ResourceArns": [resource],
                "ContextEntries": ANY,
            }
            iam.add_response("simulate_principal_policy", {"EvaluationResults": results}, asked)
        assert await missing_actions(aws, ACTIONS, USER) == ("kinesis:CreateStream", "kinesis:PutRecords")
        iam.assert_no_pending_responses()


async def test_of_a_session_the_role_is_asked_for_with_its_path() -> None:
    aws, arn = clients(), "arn:aws:iam::123456789012:role/team/worker"
    with Stubber(aws("iam")) as iam:
        role: dict[str, Any] = {"Path": "/team/", "RoleName": "worker", "RoleId": "A" * 16, "Arn": arn}
        iam.add_response("get_role", {"Role": {**role, "CreateDate": "2026-01-01"}}, {"RoleName": "worker"})
        asked = {
            "PolicySourceArn": arn,
            "ActionNames": ["kinesis:PutRecords"],
            "ResourceArns": ANY,
            "ContextEntries": ANY,
        }
        answer = {"EvaluationResults": [evaluated("kinesis:PutRecords")]}
        iam.add_response("simulate_principal_policy", answer, asked)
        assert await missing_actions(aws, ["kinesis:PutRecords"], ROLE) == ()


@pytest.mark.parametrize("caller", [USER, ROLE, ROOT])
async def test_where_iam_may_not_be_asked_each_action_is_tried(
    monkeypatch: pytest.MonkeyPatch, caller: Caller
) -> None:
    aws = clients()
    refusing(monkeypatch, aws("iam"), lambda _: error("AccessDenied"))

    def kinesis(operation: str) -> ClientError | None:
        if operation == "CreateStream":
            text = "User: me is not authorized to perform: kinesis:AddTagsToStream on resource: arn:x"
            return error("AccessDeniedException", text)
        return error("AccessDeniedException") if operation == "PutRecords" else None

    tried = refusing(monkeypatch, aws("kinesis"), kinesis)
    refusing(monkeypatch, aws("dynamodb"), lambda _: None)
    missing = await missing_actions(aws, ACTIONS, caller)
    assert missing == ("kinesis:AddTagsToStream", "kinesis:PutRecords")
    assert tried == ["CreateStream", "PutRecords"]


@pytest.mark.parametrize("code", ["ExpiredToken", "UnrecognizedClientException"])
async def test_credentials_of_no_use_are_no_missing_permission(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    aws = clients()
    refusing(monkeypatch, aws("iam"), lambda _: error("AccessDenied"))
    refusing(monkeypatch, aws("kinesis"), lambda _: error(code))
    with pytest.raises(ProveError, match="refuses these credentials"):
        await missing_actions(aws, ACTIONS, USER)


async def test_a_refused_token_is_reported_with_the_profile_option(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = clients()
    refusing(monkeypatch, aws("sts"), lambda _: error("InvalidClientTokenId"))
    with pytest.raises(ProveError, match="--profile"):
        await caller_of(aws, REGION, None)


def statements(actions: Iterable[str]) -> dict[str, list[str]]:
    return {
        action: each["Resource"] for each in policy(actions, USER)["Statement"] for action in each["Action"]
    }


def test_the_policy_to_paste_names_every_action_and_only_our_resources() -> None:
    found = statements(EVERY_SCENE)
    assert set(found) == EVERY_SCENE
    assert all("kcl-prove-*" in resource for each in found.values() for resource in each)
    assert found["dynamodb:Query"] == [f"arn:aws:dynamodb:{REGION}:123456789012:table/kcl-prove-*/index/*"]


def test_scenes_add_their_actions_and_what_removing_needs() -> None:
    plain = TinyScene(actions=frozenset({"glue:CreateRegistry", "fis:StartExperiment"}))
    wanted = needed_actions([plain], Caller(USER.arn, USER.account, REGION, "arn:aws:iam::1:role/fis"))
    assert {"glue:CreateRegistry", "glue:DeleteRegistry", "fis:StopExperiment", "iam:PassRole"} < set(wanted)
    assert set(needed_actions([TinyScene()], USER)) == EVERY_SCENE
    assert resources("iam:PassRole", USER) == ("*",)


def test_operations_have_the_names_of_boto3s_methods() -> None:
    aws = clients()
    for action in probe_arguments(USER):
        service, _, operation = action.partition(":")
        assert callable(getattr(aws(service), xform_name(operation)))
