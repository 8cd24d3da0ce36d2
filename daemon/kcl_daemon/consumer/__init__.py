"""One held lease at work: its child process, deliveries, checkpoints (KCL: ShardConsumer).

A `Consumer` waits for the parents of its shard, then keeps a `ChildRun` going (`child_session`), or with several children
`ShardLanes` (`lanes`), which gives each of them a `Lane`. A child gets records through a `Gate` (`gate`) and then what its
stream has of: age (`expired`), the search for a record that no child can process (`poison`), and the line or frame
(`connection`). A record that is not processed is set aside, also one that the child rejects (`set_aside`).
What a child asks to checkpoint goes from its connection to its lane. After a failure `restart_policy` says what follows.
A stop wins over everything that waits: `StopSignal` interrupts it, and what was read comes again.
"""
