"""The adapters to AWS: only this package imports botocore.

`session` makes the SDK's clients, without boto3 to save memory; they retry nothing. Their calls block, so `access` runs them in threads, limited by
kind: a lease renewal that waits behind slow reads can lose the lease. A cancelled caller returns at once; its thread
goes on until the timeouts, so a write may still take effect.

What is called all the time (Kinesis, updates of leases, metrics) goes over `kcl_daemon.transport`. `access` asks the
SDK once for an endpoint, and for credentials whenever they are renewed. If HTTPS_PROXY, HTTP_PROXY and NO_PROXY
select a proxy, the SDK's HTTP client sends these calls, in threads.

`dynamodb` must agree with `kcl_daemon.leases.row`; `tables` does as Java workers do (KCL: DynamoDBLeaseSerializer).
"""
