from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import anyio

from kcl_daemon.aws.letters import (
    Client,
    LetterService,
    LimitedLetters,
    SpooledLetters,
    chunks,
    fifo_fields,
    plain_text,
)
from kcl_daemon.config.dead_letters import MakeArn, Right, WithData
from kcl_daemon.config.kinds import endpoint
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AwsError, InvalidRequest
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadPlace, LetterSource, StoredLetter, unwrapped

_PATH: Final = re.compile(r"/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?")
# sqs.eu-west-1.amazonaws.com, vpce-....sqs.eu-west-1.vpce.amazonaws.com, eu-west-1.queue.amazonaws.com
_REGION: Final = re.compile(
    r"(?:^|\.)(?:sqs(?:-fips)?\.(?P<new>[a-z0-9-]+)|(?P<old>[a-z0-9-]+)\.queue)\.(?:vpce\.)?amazonaws\."
)
_HIDDEN_S: Final = 120
_HELD_AGAIN_S: Final = 40
_MESSAGES_AT_ONCE: Final = 10


class QueueLetters(LimitedLetters):
    scheme = "sqs"
    limit = ("1 MiB, or MaximumMessageSize of the queue", "about 768 KiB")
    operation = "SendMessage"

    @classmethod
    def read(cls, text: str) -> QueueLetters:
        address = endpoint().read(text)
        if not _PATH.fullmatch(urlsplit(address).path):
            raise ValueError("not a queue URL, which ends in /ACCOUNT/NAME with an account of 12 digits")
        return cls(address)

    @property
    def region_name(self) -> str | None:
        found = _REGION.search(urlsplit(self.address).hostname or "")
        return (found["new"] or found["old"]) if found else None

    def service(self, endpoints: Endpoints, *, reads: bool = False) -> LetterService:
        address = "://".join(urlsplit(self.address)[:2])
        return LetterService(endpoints, "sqs", self.region_name, address=address, reads=reads)

    def send(self, client: Client, dead_letter: DeadLetter, line: bytes) -> object:
        fifo = fifo_fields(self.address, dead_letter)
        return client.send_message(QueueUrl=self.address, MessageBody=plain_text(line), **fifo)

    def ask_limit(self, client: Client) -> int:
        named = {"QueueUrl": self.address, "AttributeNames": ["MaximumMessageSize"]}
        return int(client.get_queue_attributes(**named)["Attributes"]["MaximumMessageSize"])

    def rights(self, arn: MakeArn, *, reads: bool) -> list[Right]:
        owner, name = urlsplit(self.address).path.strip("/").split("/")
        reading = ("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage")
        return [
            ("", "sqs", reading if reads else ("SendMessage",), arn("sqs", name, self.region_name, owner))
        ]

    @asynccontextmanager
    async def reader(self, endpoints: Endpoints, with_data: WithData) -> AsyncGenerator[LetterSource]:
        """What is not deleted is given back at the end."""
        async with self.service(endpoints, reads=True) as sqs:
            with closing(_Messages(sqs, self.address, with_data)) as letters:
                try:
                    yield letters
                finally:
                    # Without it they come back by themselves.
                    with suppress(AwsError), anyio.move_on_after(_HELD_AGAIN_S, shield=True):
                        await letters.hide(0)


class _Messages(SpooledLetters):
    def __init__(self, sqs: LetterService, url: str, with_data: WithData) -> None:
        super().__init__(sqs, with_data)
        self._url = url
        self._held: dict[str, str] = {}

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        while messages := await self._receive():
            known = set(self._held)
            for each in messages:
                self._held[each["MessageId"]] = each["ReceiptHandle"]
            new = [each for each in messages if each["MessageId"] not in known]
            if not new:
                return
            for each in new:
                place = f"message {each['MessageId']}"
                yield self.keep(unwrapped(str(each["Body"])), place, each["MessageId"])

    async def _receive(self) -> list[dict[str, str]]:
        # Who waits asks all servers of the queue.
        asked = {
            "MaxNumberOfMessages": _MESSAGES_AT_ONCE,
            "VisibilityTimeout": _HIDDEN_S,
            "WaitTimeSeconds": 1,
        }
        answer = await self._service.run(
            "ReceiveMessage", lambda client: client.receive_message(QueueUrl=self._url, **asked)
        )
        return list(answer.get("Messages", ()))

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        messages = [str(head.handle[2]) for head in heads if isinstance(head.handle, tuple)]
        for few in chunks([each for each in messages if each in self._held], _MESSAGES_AT_ONCE):
            answer = await self._batch("delete_message_batch", few)
            for each in few:
                if each not in {few[int(failed["Id"])] for failed in answer.get("Failed", ())}:
                    del self._held[each]
            for failed in answer.get("Failed", ()):
                why = f"{failed.get('Code')}: {failed.get('Message')}"
                raise InvalidRequest(why, operation="DeleteMessageBatch")

    async def hold(self) -> None:
        while True:
            await anyio.sleep(_HELD_AGAIN_S)
            await self.hide(_HIDDEN_S)

    async def hide(self, seconds: int) -> None:
        for few in chunks(list(self._held), _MESSAGES_AT_ONCE):
            await self._batch("change_message_visibility_batch", few, VisibilityTimeout=seconds)

    async def _batch(self, method: str, messages: Sequence[str], **more: object) -> Any:
        entries = [
            {"Id": str(number), "ReceiptHandle": self._held[each], **more}
            for number, each in enumerate(messages)
            if each in self._held
        ]
        if not entries:
            return {}
        return await self._service.run(
            method, lambda client: getattr(client, method)(QueueUrl=self._url, Entries=entries)
        )
