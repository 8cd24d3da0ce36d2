"""How far behind a fleet is, when it will have caught up, what holds it back, how many workers it wants.

Each worker measures its shards (`ShardObservation`), finds what holds each of them back (`bounds`), and stores a report in
its row (`report`). The leader puts the reports together (`picture`), makes a `Capacity` of them (`estimate`), and stores
that, so that it can be read when there is no leader. `wanted` has the number of workers, `alternatives` what other
numbers would do, `words` the sentences. Nothing here does I/O or reads a clock.

The measure is time. A shard is behind by the age of its oldest record that is not finished; at the tip it is behind by
a few seconds. Its speed is seconds of the stream finished in a second: at 1 it keeps pace, at 3 it comes nearer by two
seconds a second. It drains until it is within the service level (`serviceLevelMillis`). Shares, such as that of a CPU,
are 0 to 1. None is always "not known", or "never" for a time to drain: nothing is guessed, and what is not known is said.

The rules of `wanted`: another worker brings CPU and memory of a host, and nothing else. It does not help a child that
works all the time, a quota or a hot key, and a shard cannot be cut; so nobody wants more workers than leases. The number
rises quickly, every three minutes to twice as many and one at most. It falls slowly, by one worker after a quarter of an
hour in which fewer were enough. It turns once an hour at most. Zero is wanted only with `scaleToZero`, when all is quiet.
"""
