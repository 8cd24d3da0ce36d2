"""HTTP to Kinesis for the record path: signed calls and event streams, at a fraction of the SDK's CPU."""
