"""Which stream a lease is of, where one application reads many (KCL: StreamIdentifier).

Pure. Owns the text form and the lease keys made from it. Knows nothing of positions, or of how a stream is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_IDENTITY: Final = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)
_ARN: Final = re.compile(r"arn:[^:]+:kinesis:[^:]*:([0-9]+):stream/([^:/]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """One stream among many, and which of the streams that had its name one after the other.

    Args:
        account: the account that owns it, decimal digits.
        name: its name.
        creation_epoch: when it was created, in whole epoch seconds, above 0.
    """

    account: str
    name: str
    creation_epoch: int

    def __str__(self) -> str:
        """`account:name:creationEpoch`, as it stands in rows."""
        return f"{self.account}:{self.name}:{self.creation_epoch}"

    @staticmethod
    def parse(text: str) -> StreamIdentity:
        """The identity of a text; ValueError where it is none."""
        match = _IDENTITY.fullmatch(text)
        if match is None or not int(match[3]):
            raise ValueError(f"not an identity of a stream, account:name:creationEpoch: {text!r:.80}")
        return StreamIdentity(match[1], match[2], int(match[3]))

    @staticmethod
    def of_arn(arn: str, created_s: float) -> StreamIdentity:
        """The identity of a stream that Kinesis describes; ValueError where that is not the ARN of a stream.

        Args:
            arn: its ARN.
            created_s: its creation time, epoch seconds.
        """
        match = _ARN.fullmatch(arn)
        if match is None:
            raise ValueError(f"not the ARN of a stream: {arn!r:.200}")
        return StreamIdentity(match[1], match[2], int(created_s))
