"""The line protocol between the daemon and a record processor, without I/O. docs/protocol.md has all of it.

The daemon talks with the process of each shard over its stdin and stdout, in lines of JSON: the protocol of KCL's
MultiLangDaemon, so programs that know only that one work unchanged. What goes beyond it is an extension, used only
where the other side knows it or can ignore it.

The two sides take turns. The daemon sends an action, the child does it and answers with one status; meanwhile it may
ask for checkpoints. A record is done when a checkpoint at or behind it is stored, not when it was delivered. So a child
that crashes, or breaks the rules, loses nothing: the daemon ends it, and the next one gets all records after the
checkpoint, again.
"""
