"""The demo: real text through a real daemon on local endpoints, with every record accounted for.

Kept empty, so that the word-count processor starts quickly: one runs for each shard.
"""
