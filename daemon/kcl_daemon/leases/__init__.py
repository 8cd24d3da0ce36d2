"""Leases, their rows, expiry and the leader lock. Pure: no I/O, no clock.

A lease is the right to read one shard, and says how far it has been read. It is a row of a DynamoDB table, with the
attributes of KCL, so that Java workers can share the table. Its owner renews it by raising a counter. Who has seen the
same counter for the failover time, on a clock of its own, takes the lease for abandoned; clocks of two hosts are never
compared.

A worker that was paused does not know that its lease is lost. So every write has a condition on the row as the writer
knows it: a former owner moves no checkpoint. In a handoff both names are in the row, the next owner and the one that
still reads.
"""
