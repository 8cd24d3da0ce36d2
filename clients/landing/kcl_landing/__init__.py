"""The landing log: hosts write the records of their shards into immutable files that any reader can follow.

Readers such as Spark want each record once, in the order of its shard. But hosts crash, pause and lose leases, so two
may write one shard for a while; and an object store has no locks. So the log of a shard is a chain of segments with
the numbers 0, 1, 2, ... Each says after which position it begins and where it ends. A store must do one thing: create
an object only where there is none. Who creates number N owns it. A writer whose number is taken reads what is there,
drops the records that it has, and continues behind it, or lets go if a newer owner of the lease (a higher fencing
token) wrote it. A checkpoint is stored only after its records are durable; what a crash leaves in memory Kinesis
delivers again.

Only segments are trusted. Manifests and pages repeat what they say, so that readers need no listings, and are made
again from them. Marks say until when the shards of a host are complete; the leader's host also writes rosters, which
shards there are.

The daemon's child of a shard is a `relay`, which passes bytes to the `lander` of the host. There `conversation` has a
thread for each shard. The pure rules in `shard` and `writer`, which the simulator runs, too, say what it does.
`manifests` knows where the chain ends, `log` has names and contents of all objects, `keeping` is what `kcl-daemon
landing` does. Streams and shards are named `STREAM/SHARD`, times are epoch milliseconds, and StoreTrouble passes:
what failed is tried again.

Importing this package loads neither Arrow nor an SDK: the relay, a process for each shard, must stay small.
"""
