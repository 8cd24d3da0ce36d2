"""Reads shards, a bounded way ahead of their children, and makes batches of records."""
