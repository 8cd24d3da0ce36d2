"""The demo: real text through a real daemon on local endpoints, with every record checked.

Kept empty: the word-count processor, one per shard, must start quickly.
"""
