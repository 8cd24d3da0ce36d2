from __future__ import annotations

import re
from typing import Final

from kcl_daemon.aws.letters import USUAL_LIMIT, Client, LetterService, LimitedLetters, fifo_fields, plain_text
from kcl_daemon.config.dead_letters import MakeArn, Right
from kcl_daemon.config.services import Endpoints
from kcl_daemon.records.dead_letter import DeadLetter

_TOPIC: Final = re.compile(
    r"arn:aws[a-z-]*:sns:(?P<region>[a-z0-9-]+):[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?"
)


class TopicLetters(LimitedLetters):
    scheme = "sns"
    limit = ("256 KiB, or MaximumMessageSize of the topic", "about 192 KiB")
    unreadable = "a topic keeps nothing: subscribe an SQS queue to it, and give sqs:QUEUE_URL"
    operation = "Publish"

    @classmethod
    def read(cls, text: str) -> TopicLetters:
        if not _TOPIC.fullmatch(text):
            raise ValueError("not the ARN of a topic")
        return cls(text)

    def service(self, endpoints: Endpoints, *, reads: bool = False) -> LetterService:
        region_name = self.address.split(":")[3]
        return LetterService(endpoints, "sns", region_name, regional=endpoints.sns, reads=reads)

    def send(self, client: Client, dead_letter: DeadLetter, line: bytes) -> object:
        fifo = fifo_fields(self.address, dead_letter)
        return client.publish(TopicArn=self.address, Message=plain_text(line), **fifo)

    def ask_limit(self, client: Client) -> int:
        of_topic = client.get_topic_attributes(TopicArn=self.address)["Attributes"]
        return int(of_topic.get("MaximumMessageSize", USUAL_LIMIT))

    def rights(self, arn: MakeArn, *, reads: bool) -> list[Right]:
        del arn
        return [] if reads else [("", "sns", ("Publish",), self.address)]
