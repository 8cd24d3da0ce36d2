"""PURE: who should hold which lease, and why.

No I/O, no clock, no randomness: values in, decisions out.
"""
