"""Leases, their rows, expiry and the leader lock. Pure: no I/O, no clock."""
