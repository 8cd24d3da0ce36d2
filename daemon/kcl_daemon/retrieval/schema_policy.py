"""What becomes of a record that cannot be opened: its schema is unknown, or what follows the header cannot be unpacked.

Owns the choice between waiting and passing it on (`schemaRegistryFailure`), with its back-off and its words in the log. A
policy that skips such records or puts them aside is another `OpeningPolicy`; whoever asks does as the `Verdict` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from kcl_daemon.config.schema_settings import SchemaFailure
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.ports import Clock, Log, Randomness
from kcl_daemon.retrieval.payload import RawRecord

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_MOST_DOUBLINGS: Final = 10
_OF_THE_RECORD: Final = (
    "the shard waits. Was the schema deleted, or is it in another account or region (glueClient.region, "
    "AwsCredentialsProviderGlue)? With schemaRegistryFailure = PASSTHROUGH, a record that only looks "
    "like one of the registry is delivered"
)


class Verdict(Enum):
    """What to do about a record that could not be opened."""

    AGAIN = "try to open it again"
    AS_IT_CAME = "deliver it with its header, without a schema"


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt to open a record that failed through the record.

    Args:
        record: as it came.
        version_id: that its header names.
        reason: why.
        attempt: 1 for the first.
    """

    record: RawRecord
    version_id: str
    reason: str
    attempt: int


class OpeningPolicy(Protocol):
    """Judges records that cannot be opened; one for each reader of a shard."""

    async def judge(self, failure: Failure) -> Verdict:
        """What is to be done; may take its time, as nothing of the shard goes on meanwhile. Cancelled: nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How one reader waits, and how loud it is about it: the first time, then ever more rarely.

    Args:
        clock: for the pauses.
        randomness: spreads them.
        log: of the shard.
    """

    clock: Clock
    randomness: Randomness
    log: Log

    async def wait_for_schema(self, failure: Failure) -> None:
        """A while, after the registry did not know a schema or a record could not be unpacked."""
        await self._wait("schema_unresolved", failure, _OF_THE_RECORD)

    async def wait_for_registry(self, failure: Failure, error: AwsError) -> None:
        """A while, after the registry did not answer or refused: no fault of the record."""
        if isinstance(error, AccessDenied):
            await self._wait("schema_registry_refused", failure, "allow glue:GetSchemaVersion", is_grave=True)
        else:
            await self._wait("schema_registry_failed", failure, "the shard waits until Glue answers")

    async def _wait(self, event: str, failure: Failure, advice: str, *, is_grave: bool = False) -> None:
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failure.attempt - 1, _MOST_DOUBLINGS))
        pause_s = longest_s * self.randomness.uniform(0.5, 1.0)
        rarely = failure.attempt & (failure.attempt - 1) == 0
        loud = self.log.error if is_grave else self.log.warning
        tell = loud if rarely else self.log.debug
        tell(
            event,
            reason=failure.reason,
            schema_version_id=failure.version_id,
            sequence_number=failure.record.sequence_number,
            sub_sequence_number=failure.record.sub_sequence_number,
            attempt=failure.attempt,
            pause_s=round(pause_s, 1),
            advice=advice,
        )
        await self.clock.sleep(pause_s)


class Retrying:
    """The policy that waits: no record is lost or passed unopened, and the shard stands still until it can be."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    async def judge(self, failure: Failure) -> Verdict:
        """As the protocol says."""
        await self._patience.wait_for_schema(failure)
        return Verdict.AGAIN


class PassingOn:
    """The policy that delivers the record as it came; loud about the first one of each reader."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._count = 0

    async def judge(self, failure: Failure) -> Verdict:
        """As the protocol says."""
        self._count += 1
        tell = self._log.warning if self._count == 1 else self._log.debug
        tell(
            "schema_passed_over",
            reason=failure.reason,
            schema_version_id=failure.version_id,
            sequence_number=failure.record.sequence_number,
            sub_sequence_number=failure.record.sub_sequence_number,
            count=self._count,
            advice="it is delivered with its header; the processor sees it by the missing schemaVersionId",
        )
        return Verdict.AS_IT_CAME


def policy_of(choice: SchemaFailure, patience: Patience) -> OpeningPolicy:
    """The policy that the settings name."""
    match choice:
        case SchemaFailure.RETRY:
            return Retrying(patience)
        case SchemaFailure.PASSTHROUGH:
            return PassingOn(patience.log)
