"""How the workers of an application share its leases, with DynamoDB tables as all that is between them.

Each worker writes a row that says that it lives (`reporter`), and renews the rows of its leases (`lease_renewer`). One leads
(`elector`): it reads all rows (`monitor`), creates the leases that shards need and deletes those that are over
(`shard_sync`), and writes into each who shall read it (`assigner`). That worker finds its leases (`discovery`). In a handoff the next
owner stands in the row while the old one still reads, until that has stored its last checkpoint and released the lease.

What holds in all files:

- Every write names what the row must still look like. So a second leader, a late write, or a worker that stood still does no harm.
- A worker gives up a lease when its last write known to have taken effect is older than the failover time on its own monotonic clock.
  Others take a lease when they saw no change of it for as long, when its process is proven dead, or when a handoff takes too long.
- A write without an answer may have taken effect: the row is read before anything is concluded.
- A kill at any point leaves rows that expire, or that the next leader completes. `faults.maybe` marks the points.
- What calls AWS raises AwsError and may be called again. "Never raises for AWS": the failure is logged, and a later look, or expiry,
  makes up for it.
- `moved_s` and `began_s` are monotonic seconds from before a write: its answer may take long.
"""
