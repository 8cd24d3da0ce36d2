"""Which leases a stream needs, and the order of its shards. Pure: no I/O, no clock.

A reshard closes shards and opens their children. The records of a key stay in order only if a child is read after its
parents, so its lease names them and waits until they are finished. Three things can go wrong: a missing lease leaves a
hole, a range of hash keys that nobody reads; one that is created before its parent's would not wait; and one that is
deleted too early makes its children look like shards without a parent, which are read from the initial position.

`snapshot` makes the segments of a scan of a DynamoDB table into shards that come before those of its stream;
`table_streams` joins the streams that a table has had.
"""
