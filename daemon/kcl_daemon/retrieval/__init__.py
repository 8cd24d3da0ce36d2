"""Reads shards, a bounded way ahead of their children.

A reader (`polling`, `fan_out`) asks for records and never gives up: why it waits is its `trouble`. Its `ShardSource`
says what is read, from where. An answer goes through the stages of its shard (`stages`): aggregates are taken apart and
what the checkpoint covers is left out, then schemas are resolved (`schemas`), then a filter keeps what is for the child
(`filtering`). What is left becomes batches, encoded at once if the child's form is known, and waits for the child, within
the limits of a shard and of the worker (`byte_budget`). A `BatchWindow` joins and cuts them where the application wants
batches of a size. The consumer takes them: lanes, holds, age, and the line or frame are its part of the way
(`consumer/child_session.py`).
"""
