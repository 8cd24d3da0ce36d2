"""The port for records that were set aside."""

from __future__ import annotations

from typing import Protocol

from kcl_daemon.failures.letter import DeadLetter


class DeadLetters(Protocol):
    """A place that keeps records which no child could process."""

    async def store(self, letter: DeadLetter) -> None:
        """Store one; it is safe when this returns: on disk, or taken by the service.

        Cancelled, it may have been stored. A second one of the same record does no harm.

        Raises:
            AwsError: the service did not take it; InvalidRequest where it never will, such as a letter too large.
            DeadLetterNotStored: this host could not write it.
        """
        ...
