"""Which leases a stream needs, and the order of its shards. Pure: no I/O, no clock."""
