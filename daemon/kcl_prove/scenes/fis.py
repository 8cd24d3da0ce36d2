"""AWS FIS makes Kinesis fail: errors of this stream, and general ones for the role that the proof runs as."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from botocore.exceptions import ClientError

from kcl_local.demo.stream import in_thread
from kcl_prove.parts import Options, ProveError
from kcl_prove.scenes.traffic import Play

ACTION_NAMES: Final = {
    "throughput": "aws:kinesis:stream-provisioned-throughput-exception",
    "iterator": "aws:kinesis:stream-expired-iterator-exception",
    "internal": "aws:fis:inject-api-internal-error",
    "throttle": "aws:fis:inject-api-throttle-error",
    "unavailable": "aws:fis:inject-api-unavailable-error",
}
_OF_FIS: Final = (
    *("CreateExperimentTemplate", "DeleteExperimentTemplate", "ListExperimentTemplates", "TagResource"),
    *("StartExperiment", "StopExperiment", "GetExperiment", "ListExperiments"),
)
ACTIONS: Final = frozenset({*(f"fis:{name}" for name in _OF_FIS), "iam:GetRole", "iam:PassRole"})
MINUTES: Final = 1
"""The shortest that FIS takes."""
PERCENTAGE: Final = 20
OPERATIONS: Final = "GetRecords,GetShardIterator,PutRecords"
_START_AT: Final = 0.1
_POLL_S: Final = 3.0
_ENDS_WITHIN_S: Final = 600.0
_OVER: Final = frozenset({"completed", "stopped", "failed", "cancelled"})
_CLEAN_UP_WITHIN_S: Final = 60.0


def left_out(options: Options) -> str:
    if options.fis_role is None:
        return "needs --fis ROLE, the ARN of a role that AWS FIS can assume"
    return "there is no local endpoint of AWS FIS" if options.is_local else ""


def template(
    name: str, tags: Mapping[str, str], *, fis_role: str, stream_arn: str, own_role: str | None
) -> dict[str, Any]:
    """`own_role` None: only errors of the stream."""
    common = {"duration": f"PT{MINUTES}M", "percentage": str(PERCENTAGE)}
    actions: dict[str, Any] = {}
    for key, action in ACTION_NAMES.items():
        if action.startswith("aws:kinesis:"):
            actions[key] = {"actionId": action, "parameters": common, "targets": {"KinesisStreams": "stream"}}
        elif own_role is not None:
            parameters = {**common, "service": "kinesis", "operations": OPERATIONS}
            actions[key] = {"actionId": action, "parameters": parameters, "targets": {"Roles": "role"}}
    found = {"stream": ("aws:kinesis:stream", stream_arn), "role": ("aws:iam:role", own_role)}
    return {
        "clientToken": name,
        "description": "kcl-daemon prove: Kinesis fails",
        "stopConditions": [{"source": "none"}],
        "targets": {
            key: {"resourceType": kind, "resourceArns": [arn], "selectionMode": "ALL"}
            for key, (kind, arn) in found.items()
            if arn is not None
        },
        "actions": actions,
        "roleArn": fis_role,
        "tags": {**tags, "Name": name},
    }


async def own_role(play: Play) -> str | None:
    """None: this process runs as a user, or as a role that cannot be read."""
    arn: str = (await in_thread(play.stage.client("sts").get_caller_identity))["Arn"]
    kind, _, rest = arn.rpartition(":")[2].partition("/")
    if kind != "assumed-role":
        return None
    try:
        answer = await in_thread(play.stage.client("iam").get_role, RoleName=rest.partition("/")[0])
    except ClientError:
        return None
    role: str = answer["Role"]["Arn"]
    return role


async def make_kinesis_fail(play: Play) -> None:
    role = await own_role(play)
    if role is None:
        play.notes.append("throttle, internal and unavailable are left out: the proof does not run as a role")
    await play.at(_START_AT)
    async with running_experiment(play, role) as experiment_id:
        state = await ended(play, experiment_id)
    play.notes.append(f"FIS experiment {experiment_id} is {state['status']}: {state.get('reason', '')}")
    if state["status"] != "completed":
        play.missed.append("the FIS experiment did not complete")


@asynccontextmanager
async def running_experiment(play: Play, role: str | None) -> AsyncGenerator[str]:
    """It is stopped at the end of the block, and its template removed."""
    fis, name, fis_role = play.stage.client("fis"), f"{play.stage.run_id}-fis", play.stage.options.fis_role
    assert fis_role is not None, "left out without one"
    summary = await in_thread(
        play.stage.client("kinesis").describe_stream_summary, StreamName=play.stream.name
    )
    arn: str = summary["StreamDescriptionSummary"]["StreamARN"]
    wanted = template(name, play.stage.tags, fis_role=fis_role, stream_arn=arn, own_role=role)
    await play.stage.remember("fis template", name)
    made = await in_thread(fis.create_experiment_template, **wanted)
    template_id: str = made["experimentTemplate"]["id"]
    experiment_id = ""
    try:
        begun = await in_thread(
            fis.start_experiment, experimentTemplateId=template_id, tags=dict(play.stage.tags)
        )
        experiment_id = begun["experiment"]["id"]
        yield experiment_id
    finally:
        with anyio.move_on_after(_CLEAN_UP_WITHIN_S, shield=True):
            if experiment_id and (await state_of(play, experiment_id))["status"] not in _OVER:
                await in_thread(fis.stop_experiment, id=experiment_id)
            await in_thread(fis.delete_experiment_template, id=template_id)


async def state_of(play: Play, experiment_id: str) -> dict[str, str]:
    answer = await in_thread(play.stage.client("fis").get_experiment, id=experiment_id)
    state: dict[str, str] = answer["experiment"]["state"]
    return state


async def ended(play: Play, experiment_id: str) -> dict[str, str]:
    with anyio.move_on_after(_ENDS_WITHIN_S):
        while True:
            state = await state_of(play, experiment_id)
            if state["status"] in _OVER:
                return state
            await anyio.sleep(_POLL_S)
    raise ProveError(f"FIS experiment {experiment_id} did not end within {_ENDS_WITHIN_S:g} s")


async def calls_failed(play: Play) -> None:
    failed = {
        f"{operation} {count}"
        for (operation, outcome), count in play.fleet.calls.items()
        if outcome != "success" and count
    }
    play.notes.append(f"calls that failed: {', '.join(sorted(failed)) or 'none'}")
    if not failed:
        play.missed.append("no call failed, so nothing was injected")
