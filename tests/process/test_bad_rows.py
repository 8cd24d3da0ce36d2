"""Rows of a lease table that are no leases, or leases with something missing: left alone, told once, in nobody's way."""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, Daemon, application, wait_until
from tests.process.local import Local

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

    Attributes = dict[str, AttributeValueTypeDef]

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
QUICK: Final = {"idleTimeBetweenReadsInMillis": 200, "failoverTimeMillis": FAILOVER_MS}
SOUND: Final = "shardId-000000000000"
# What is wrong with the row of which shard: an attribute is gone, or of another type or meaning.
DAMAGE: Final[dict[str, tuple[str, AttributeValueTypeDef | None]]] = {
    "shardId-000000000001": ("checkpoint", None),
    "shardId-000000000002": ("leaseCounter", {"S": "many"}),
    "shardId-000000000003": ("checkpoint", {"S": "yesterday"}),
}
# Foreign rows: nothing but a key, another kind by its name, a lease whose owner is no text.
STRANGERS: Final[dict[str, Attributes]] = {
    "note": {"leaseKey": {"S": "note"}},
    "audit": {"leaseKey": {"S": "audit"}, "entityType": {"S": "AUDIT"}, "leaseCounter": {"S": "x"}},
    "odd": {
        "leaseKey": {"S": "odd"},
        "leaseCounter": {"N": "3"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "LATEST"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "leaseOwner": {"M": {}},
    },
}
REPORTED: Final = ("note", "odd")
OF_THE_OPERATOR: Final[Attributes] = {"team": {"S": "billing"}, "labels": {"L": [{"N": "1"}, {"NULL": True}]}}


@pytest.fixture
def app(local: Local, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Application]:
    """An application of four shards, a record in each."""
    name = str(request.node.name).replace("_", "-")
    with application(local, tmp_path, name, shards=4) as made:
        made.put(5)
        yield made


def rewrite(app: Application, row: Attributes) -> None:
    app.dynamodb.put_item(TableName=app.name, Item=row)


def damaged(app: Application) -> dict[str, Attributes]:
    """Damage the rows; as they are now, by key."""
    rows = {key: dict(row) for key, row in app.rows().items() if key in DAMAGE}
    for key, (attribute, value) in DAMAGE.items():
        if value is None:
            del rows[key][attribute]
        else:
            rows[key][attribute] = value
        rewrite(app, rows[key])
    return rows


def several_looks(app: Application) -> None:
    """Wait until the leases have been renewed a few times; the leader looks at the table at least as often."""

    def counter() -> int:
        return int(app.rows()[SOUND]["leaseCounter"].get("N", "0"))

    begin = counter()
    wait_until(lambda: counter() >= begin + 3, "three renewals")


def reported(daemon: Daemon) -> list[str]:
    return sorted(event["lease_key"] for event in daemon.named("lease_row_malformed"))


def test_a_damaged_row_holds_up_its_own_shard_until_it_is_repaired(app: Application) -> None:
    with app.daemon(CAREFUL, QUICK) as first:
        app.wait_done()
        first.signal(signal.SIGKILL)
        first.end()
    sound = app.rows()
    broken = damaged(app)
    with app.daemon(CAREFUL, QUICK) as second:
        app.put(5)
        second.wait_for("lease_row_malformed", times=len(DAMAGE))
        app.wait_done([SOUND])
        several_looks(app)
        assert {key: row for key, row in app.rows().items() if key in DAMAGE} == broken
        for key, (attribute, _) in DAMAGE.items():
            assert not app.delivered([key])
            (event,) = second.named("lease_row_malformed", lease_key=key)
            assert event["level"] == "error"
            assert attribute in event["error"]
            assert "repair" in event["advice"]
        for key in DAMAGE:
            rewrite(app, sound[key])
        app.wait_done()
        second.stop()
    app.assert_account(repeated=0)


def test_foreign_rows_and_attributes_are_left_alone(app: Application) -> None:
    with app.daemon(CAREFUL, QUICK) as daemon:
        app.wait_done()
        for row in STRANGERS.values():
            rewrite(app, row)
        app.dynamodb.update_item(
            TableName=app.name,
            Key={"leaseKey": {"S": SOUND}},
            UpdateExpression="SET team = :team, labels = :labels",
            ExpressionAttributeValues={f":{name}": value for name, value in OF_THE_OPERATOR.items()},
        )
        app.put(5)
        app.wait_done()
        several_looks(app)
        daemon.stop()
    assert reported(daemon) == sorted(REPORTED)
    rows = app.rows()
    assert {key: rows[key] for key in STRANGERS} == STRANGERS
    assert {name: rows[SOUND].get(name) for name in OF_THE_OPERATOR} == OF_THE_OPERATOR
    app.assert_account(repeated=0)
