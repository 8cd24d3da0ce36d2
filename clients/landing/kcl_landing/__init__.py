"""The landing log: every host writes the records of its shards into immutable files that any reader can follow.

Importing this package loads neither Arrow nor an SDK: the relay, one process per shard, must stay small.
"""
