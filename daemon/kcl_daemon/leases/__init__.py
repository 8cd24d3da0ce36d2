"""PURE: leases, their rows, expiry and the leader lock. No I/O, no clock: values in, decisions out."""
