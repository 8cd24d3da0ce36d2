"""The child processes of the daemon: the operator's program, once for each shard or each lane of one.

A child leads a process group of the same number. The kernel keeps that number until the leader is reaped; later it may
be another process's. So signals are sent only before that, and every look at the leader is followed at once by what it
allows, with no await in between. When the leader has ended, the rest of its group is killed, and only then it is
reaped. A process that calls `setsid` is out of reach. What the child has written is still read, but nobody waits for
the end of a pipe: a process that left the group may hold it open.

The guard is a shell process, for when the daemon is killed. One second after the end of a pipe that only the daemon
writes it kills the groups.
"""
