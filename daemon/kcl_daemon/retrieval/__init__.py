"""From a shard's position to batches of records, a bounded way ahead of the child."""
