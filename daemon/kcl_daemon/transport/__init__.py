"""HTTP for the record path, with far less CPU than the SDK: records stay undecoded in the body that they came in.

`http1` is one connection, `pool` keeps connections to an endpoint, `caller` signs calls of a JSON service. On these
stand the ports: `kinesis`, `event_stream` (enhanced fan-out), `dynamodb_streams`, and over that `table_streams` (a
table has one stream after another) and `snapshots` (its items come before its changes). `sources` puts streams of
both services together.

- A call is sent once, with two exceptions. If the service refused the time of the signature, it is sent again with
  the service's time, which then stays in use. If a kept connection broke before any answer, it is sent again on a new
  one; but not with `once`, for a write, because it may have taken effect.
- No answer is Unavailable. So is a malformed answer or event: the caller asks again.
- After a cancellation or a broken answer a connection is closed.
"""
