"""One consumer with enhanced fan-out: its life and who reads with it. Knows no stream."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turn:
    """A subscription to a shard.

    Args:
        number: tells it from all others of the model.
        started_s: epoch seconds.
    """

    number: int
    started_s: float


@dataclass(slots=True, eq=False)
class Consumer:
    """A consumer.

    Args:
        name: unique in its stream.
        stream_arn: its stream.
        created_s: epoch seconds.
        deleted_s: when it was deregistered, None while it was not.
        turns: the last subscription to each shard, by shard ID, also where it is over.
    """

    name: str
    stream_arn: str
    created_s: float
    deleted_s: float | None = None
    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])

    @property
    def arn(self) -> str:
        """Its ARN, with the second of its creation."""
        return f"{self.stream_arn}/consumer/{self.name}:{int(self.created_s)}"

    def status(self, now_s: float, creating_s: float) -> str:
        """`ConsumerStatus` on the wire."""
        if self.deleted_s is not None:
            return "DELETING"
        return "ACTIVE" if now_s >= self.created_s + creating_s else "CREATING"
