"""Reads shards, a bounded way ahead of their children."""
