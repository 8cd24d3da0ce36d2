"""SubscribeToShard: one subscription and the events that it gives. Knows no frame and no connection.

It waits for nothing: whoever holds it asks for the next event, and is rung when there may be one.
"""

from __future__ import annotations

from collections.abc import Callable

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.consumer import Consumer, Turn
from kcl_local.kinesis.errors import in_use, malformed, not_found
from kcl_local.kinesis.pages import child_entry, millis_behind, record_entries
from kcl_local.kinesis.positions import Start, position_after
from kcl_local.kinesis.registering import named_consumer, require_active
from kcl_local.kinesis.shard import Shard
from kcl_local.kinesis.stream import Stream

_RECORDS_MAX = 10_000


class Subscription:
    """A running SubscribeToShard; it ends by itself at the shard's end and after its time.

    Args:
        account: where it reads; its time is that of the last call.
        look_at_clock: brings the account's time up to date.
        stream: what it reads.
        shard: of that stream.
        consumer: who reads.
        after_tick: every record above it is still to be read.

    Attributes:
        ended: whether no further event will come.
    """

    def __init__(
        self,
        account: Account,
        look_at_clock: Callable[[], None],
        *,
        stream: Stream,
        shard: Shard,
        consumer: Consumer,
        after_tick: int,
    ) -> None:
        self._account = account
        self._look_at_clock = look_at_clock
        self._stream = stream
        self._shard = shard
        self._consumer = consumer
        self._after_tick = after_tick
        self._turn = Turn(stream.numbers.next_tick(), account.now_s)
        self._last_event_s = account.now_s
        self._held_until_s = 0.0
        self.ended = False
        consumer.turns[shard.shard_id] = self._turn
        shard.wake()  # whoever is overtaken must learn it

    def ring(self, bell: Callable[[], None]) -> None:
        """Call that, instead of an earlier one, whenever `next_event` may have something new; it must not ask at once."""
        self._shard.bells[self._turn.number] = bell

    def next_event(self) -> Answer | None:
        """The event that is due; None: there is none now, or the subscription has ended.

        Raises:
            ServiceError: the subscription ends with this exception.
        """
        if self.ended:
            return None
        self._look_at_clock()
        now_s = self._account.now_s
        try:
            self._require_life()
        except BaseException:
            self.close()
            raise
        if now_s >= self._turn.started_s + self._account.options.fan_out.lasts_s:
            self.close()
            return None
        if now_s < self._held_until_s:
            return None
        event = self._read()
        if event is not None:
            self._last_event_s = now_s
        return event

    def due_in_s(self) -> float:
        """When to ask again at the latest, even if nobody rings; in seconds."""
        options = self._account.options.fan_out
        next_s = min(self._last_event_s + options.idle_s, self._turn.started_s + options.lasts_s)
        if self._held_until_s > self._account.now_s:
            next_s = min(next_s, self._held_until_s)
        return max(0.001, next_s - self._account.now_s)

    def close(self) -> None:
        """End it, with no further event. The consumer's protection against another subscription goes on."""
        self.ended = True
        self._shard.bells.pop(self._turn.number, None)

    def _require_life(self) -> None:
        if self._account.streams.get(self._stream.arn) is not self._stream:
            raise not_found(f"stream {self._stream.arn} has been deleted")
        self._stream.expire(self._account.now_s)
        self._stream.shard(self._shard.shard_id)
        if self._consumer.deleted_s is not None:
            raise not_found(f"consumer {self._consumer.arn} has been deregistered")
        if self._consumer.turns[self._shard.shard_id] is not self._turn:
            raise in_use("Another active subscription exists for this consumer: it took over")

    def _read(self) -> Answer | None:
        account, shard, records = self._account, self._shard, self._shard.records
        records.trim(self._stream.horizon_s(account.now_s))
        start = records.first_after(self._after_tick)
        end = records.end_of_page(start, _RECORDS_MAX, account.options.fan_out.event_bytes_max)
        idle = start == end and shard.is_open
        if idle and account.now_s < self._last_event_s + account.options.fan_out.idle_s:
            return None
        if account.options.limits is not None:
            size_bytes = records.size_bytes(start, end)
            self._held_until_s = account.now_s + size_bytes / account.options.limits.bytes_per_s
        if end > start:
            self._after_tick = records.tick(end - 1)
        event: Answer = {
            "Records": record_entries(self._stream, shard, start, end),
            "MillisBehindLatest": millis_behind(account, shard, end),
        }
        if end == len(records) and not shard.is_open:
            event["ChildShards"] = [child_entry(child) for child in shard.children]
            self.close()
        else:
            if idle:
                self._after_tick = self._stream.numbers.next_tick()
                shard.continue_at(self._after_tick)
            event["ContinuationSequenceNumber"] = self._stream.numbers.text(self._after_tick, shard.index)
        return event


def subscribe(account: Account, look_at_clock: Callable[[], None], arguments: Arguments) -> Subscription:
    """SubscribeToShard. A second one for a consumer and shard takes over, unless it comes too soon after the first."""
    position = arguments.structure("StartingPosition")
    if position is None:
        raise malformed("StartingPosition must be given")
    arguments.text("ConsumerARN")
    stream, consumer = named_consumer(account, arguments)
    require_active(account, consumer)
    shard = stream.shard(arguments.text("ShardId"))
    after_tick = position_after(account, stream, shard, Start.of_subscription(position))
    last = consumer.turns.get(shard.shard_id)
    if last is not None and account.now_s < last.started_s + account.options.fan_out.protected_s:
        raise in_use(
            f"Another active subscription exists for this consumer: {consumer.arn}, shard {shard.shard_id}, "
            f"since {account.now_s - last.started_s:.3f} s"
        )
    return Subscription(
        account, look_at_clock, stream=stream, shard=shard, consumer=consumer, after_tick=after_tick
    )
