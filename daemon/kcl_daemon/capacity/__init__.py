"""How far behind a fleet is, when it will have caught up, what holds it back, how many workers it wants.

Each worker measures its shards (`ShardObservation`), finds what holds each back (`bound_of`), and stores a report in its row
(`figures`). The leader puts them together (`picture`), makes a `Capacity` (`estimate`), and stores that. `wanted` has the number of
workers, `alternatives` what other numbers would do, `words` the sentences. Nothing here does I/O or reads a clock.

A shard is behind by the age of its oldest record that is not finished; at the tip by a few seconds. Its speed is seconds of the
stream finished in a second: at 1 it keeps pace. It drains until it is within the service level (`serviceLevelMillis`). Shares are
0 to 1. None is always "not known", or "never" for a time to drain: nothing is guessed.

The rules of `wanted`: another worker brings CPU and memory of a host, and nothing else. It does not help a child that works all
the time, a quota or a hot key, and a shard cannot be cut. The number rises every three minutes, to twice as many and one at most. It
falls by one worker after a quarter of an hour in which fewer were enough, and turns once an hour at most. Zero is wanted only with
`scaleToZero`, when all is quiet.
"""
