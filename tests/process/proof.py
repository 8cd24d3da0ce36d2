"""`kcl-daemon prove` with one tiny scene: a stream, a table, and a wait that a test can watch."""

from __future__ import annotations

import anyio

from kcl_local.demo.stream import in_thread
from kcl_prove.command import command
from kcl_prove.parts import Options, SceneResult, Size, Usage
from kcl_prove.stage import Stage


class Waiting:
    name = "waiting"
    title = "makes things and waits"
    actions: frozenset[str] = frozenset()

    def usage(self, size: Size) -> Usage:
        return Usage(shard_hours=size.shards)

    def left_out(self, options: Options) -> str:
        return "" if options.is_local else "only for tests"

    async def play(self, stage: Stage) -> SceneResult:
        stream = await stage.create_stream("orders", shards=2)
        table = stage.application("app")
        await in_thread(
            stage.client("dynamodb").create_table,
            TableName=table,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        stage.say(f"made {stream} and {table}")
        await anyio.sleep(0.1 if stage.options.size.shards == 2 else 600)
        return SceneResult(self.name, passed=True, written=1, delivered=1)


if __name__ == "__main__":
    command(lambda: (Waiting(),))(prog_name="prove")
