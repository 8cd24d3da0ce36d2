"""PURE: which leases a stream needs, in which order its shards may be read.

No I/O, no clock, no randomness: values in, decisions out.
"""
