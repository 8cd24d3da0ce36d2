"""What a record is between Kinesis and a child: taken apart, filtered, set aside, and made.

Data stays the base64 text of the service's answer until somebody must look into it (`payload`, `base64_text`). On the
way to a child, KPL aggregates are taken apart (`kpl`), changes of a DynamoDB table get the form that the child wants
(`changes`), schema headers are cut off (`schema_header`), and `record_filter` leaves out what is not for the child, as
patterns say (`event_pattern`). `lane_window` knows which of several children of a shard has which record. A record that
no child can process becomes a dead letter (`dead_letter`); `letters` and `letter_queue` give it to a program once more.
`producing` makes records from lines, `content` shows them to people.

What holds in all files:

- Nothing here does I/O or keeps anything beyond the process. A crash loses what was not checkpointed, and that is read
  again.
- One answer may have 10 MiB, and an aggregate many thousand records. So what each record needs runs in C, and what takes
  long is a generator that pauses after some milliseconds.
- An aggregate or a header that cannot be understood does not stop its shard: it is delivered as it came, and reported.
- What comes from people or from outside (lines, letters, patterns) is refused by a ValueError that says why: BadLine,
  BadLetter, PatternError.
- A position is a sequence number, and in an aggregate also the number of the user record. Within a shard they only grow.
"""
