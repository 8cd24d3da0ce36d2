"""What Kinesis last said about one shard.

Written by whatever reads the shard, once for each answer and with plain assignments; looked at by those who tell how
the shard is. Owns no rule.
"""

from __future__ import annotations

from typing import Final

NEVER_S: Final = float("-inf")
# A shard that is written to all the time is always a little behind. One that is stuck falls further behind.
_AT_TIP_MS: Final = 2_000


class Heard:
    """The last answers, over all readers that one lease has had.

    Attributes:
        answered_s: monotonic seconds of the last answer.
        empty_s: of the last answer that said that there is nothing new, or that led nearer to the tip without a record.
        behind_ms: behind the tip, as the last answer told; None: none has told it yet.
        trouble: why nothing comes; None where all is well.
    """

    __slots__ = ("_nearest_ms", "answered_s", "behind_ms", "empty_s", "trouble")

    def __init__(self) -> None:
        self.answered_s = NEVER_S
        self.empty_s = NEVER_S
        self.behind_ms: int | None = None
        self.trouble: str | None = None
        self._nearest_ms: int | None = None

    @property
    def at_tip(self) -> bool:
        """Whether there was nothing more to read at the last answer, or next to nothing."""
        return self.behind_ms is None or self.behind_ms <= _AT_TIP_MS

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
        if not empty:
            self._nearest_ms = None
        elif behind_ms is None or self.at_tip or self._nearest_ms is None or behind_ms < self._nearest_ms:
            # Empty answers that lead nowhere are none: a shard may be stuck behind the tip for ever.
            self.empty_s, self._nearest_ms = now_s, behind_ms
