"""How the ends of a shard are said, for children of which generation.

Pure. The protocol of KCL 2.x and 3.x is the one that everything else here speaks; what differs for children from before
2.0, and from before 2017, is here and nowhere else. They are given it only where `childProtocol` asks for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from kcl_daemon.config.settings import ChildProtocol
from kcl_protocol import encode
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    LeaseLost,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What is said to children of one generation.

    Args:
        generation: which.
    """

    generation: ChildProtocol

    @property
    def shard_ended(self) -> Action:
        """Every record has been delivered."""
        return ShardEnded() if self._is_current else Shutdown("TERMINATE")

    @property
    def lease_lost(self) -> Action:
        """The lease is gone, or will be."""
        return LeaseLost() if self._is_current else Shutdown("ZOMBIE")

    @property
    def shutdown_requested(self) -> Action | None:
        """The last chance to checkpoint; None where children do not know such a thing (KCL before 1.8)."""
        return None if self.generation is ChildProtocol.KCL_1_0 else ShutdownRequested()

    def answer(self, answer: CheckpointAnswer) -> bytes:
        """The line that answers a checkpoint; before 2017 the position was called `checkpoint`, like the action."""
        if self.generation is not ChildProtocol.KCL_1_0:
            return encode(answer)
        fields = {
            "action": answer.action,
            "checkpoint": answer.sequence_number,
            "sequenceNumber": answer.sequence_number,
            "subSequenceNumber": answer.sub_sequence_number,
            "error": answer.error,
        }
        # Escaped, as all that children are told: the position is what a child wrote, which may be no text at all.
        return json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"

    @property
    def _is_current(self) -> bool:
        return self.generation is ChildProtocol.CURRENT
