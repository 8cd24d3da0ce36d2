"""HTTP/1.1 to Kinesis for the record path: signed calls and event streams, at a fraction of the SDK's CPU."""
