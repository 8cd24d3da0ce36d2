"""PURE: what a lease is, how it is written as a row, when it expires, who may lead.

No I/O, no clock, no randomness: values in, decisions out.
"""
