"""The adapters to AWS: only this package imports botocore.

`session` makes the SDK's clients, for endpoints, regions and credentials; they retry nothing. Their calls block, so `calls`
runs them in threads, limited by kind: a lease renewal that waits behind slow reads can lose the lease. A cancelled caller
returns at once, and its thread goes on until the timeouts, so a write may still take effect.

The calls that are made all the time go over the daemon's own transport (`kcl_daemon.transport`). `access` gives it what
the SDK knows: it asks once for an endpoint, and for credentials whenever they are renewed. Such are the calls of Kinesis,
updates of leases (`dynamodb.http_update_item`) and metrics (`cloudwatch`). With a proxy the SDK's HTTP client sends them.

`dynamodb` has rows of `kcl_daemon.leases.row` as attributes and expressions, `tables` makes and checks tables as Java
workers do. `letters` and `dead_letters` store what a child could not process. `build` puts the adapters together.
"""
