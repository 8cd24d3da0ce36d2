"""Kinesis Data Streams: the model and its HTTP server."""
