"""What Kinesis last said about one shard.

Written by whatever reads the shard, once for each answer and with plain assignments; looked at by those who tell how
the shard is. Owns no rule.
"""

from __future__ import annotations

from typing import Final

NEVER_S: Final = float("-inf")


class Heard:
    """The last answers, over all readers that one lease has had.

    Attributes:
        answered_s: monotonic seconds of the last answer.
        empty_s: of the last answer in which nothing was to be delivered.
        behind_ms: behind the tip, as the last answer told; None: none has told it yet.
        trouble: why nothing comes; None where all is well.
    """

    __slots__ = ("answered_s", "behind_ms", "empty_s", "trouble")

    def __init__(self) -> None:
        self.answered_s = NEVER_S
        self.empty_s = NEVER_S
        self.behind_ms: int | None = None
        self.trouble: str | None = None

    def answer(self, *, behind_ms: int | None, empty: bool, now_s: float) -> None:
        """An answer came.

        Args:
            behind_ms: what it told.
            empty: whether it held nothing to deliver.
            now_s: monotonic seconds.
        """
        self.answered_s = now_s
        self.behind_ms = behind_ms
        self.trouble = None
        if empty:
            self.empty_s = now_s
