"""What a record is between Kinesis and a child: taken apart, filtered, set aside, and made.

Data stays the base64 text of the service's answer until somebody must look into it (`payload`). A `Batch` is records with
what is known of them. On the way to a child, aggregates are taken apart (`kpl`), changes of a table get the form that the
child wants (`changes`), schema headers are cut off (`schema_header`), and what is not for the child is left out
(`record_filter`, `event_pattern`). `lane_window` knows which of several children of a shard has which record. What no
child can process becomes a dead letter (`dead_letter`), which may come back (`letters`, `letter_queue`).

- Nothing here does I/O or keeps anything beyond the process: what was not checkpointed is read again.
- An aggregate may hold many thousand records: what each record needs runs in C, and what takes long is a generator that
  pauses after some milliseconds.
- What cannot be understood does not stop its shard: it is delivered as it came, and reported.
- What comes from people or from outside is refused by a ValueError that says why.
- A position is a sequence number, and in an aggregate also the number of the user record. Within a shard they only grow.
"""
