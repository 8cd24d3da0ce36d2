"""The child processes of the daemon: the operator's program, once for each shard or each lane of one.

`process` has the ports `Children` and `Child`. `start` starts a program as the Java daemon does. `preload` forks
children from a process that has imported the program once (`childPreload`). `pipes` reads and writes in the event loop,
without threads or copies. `room` says how many children the system's limits allow.

A child leads a process group of the same number. The kernel keeps that number until the leader is reaped; later it may
be another process's. So signals are sent only before that, and every look at the leader is followed at once by what it
allows, with no await in between. When the leader has ended, the rest of its group is killed, and only then it is
reaped. A process that calls `setsid` is out of reach. What the child has written is still read, but nobody waits for
the end of a pipe: a process that left the group may hold it open.

A daemon that is killed cannot end its children. `guard` is a shell process of each daemon. It reads group numbers from a
pipe that only the daemon writes; one second after the pipe has ended it kills the groups.

`platform` has every call that only Linux has, and what does the same on other systems, which is macOS.
"""
