"""How far each held lease is, what it waits for, and whether it is stalled.

Consumers, readers and checkpoints write into `progress` in the record path: by plain assignments, once a batch and never once
a record, with nothing formatted. Every two seconds `watchdog` looks at it, tells of stalls and measures speed and latency.
`telemetry.shards` shows it. Times are monotonic seconds; an age is by the arrival of a record in the stream. A shard with
several children has a `LeaseProgress` for itself and one for each lane.
"""
