"""Kinesis Data Streams in memory: a sans-IO model with an explicit clock, and its HTTP server."""
