"""Who should hold which lease. Pure: no I/O, no clock, no randomness.

The leader calls a strategy with the fleet as it sees it, and performs the moves of the plan. Free leases get a worker
first; then busy workers give leases away. A free lease is simply taken. One that is read is handed off: its owner
finishes, checkpoints and releases it, or it is taken by force after a while. The same fleet always gives the same plan,
and each move has a reason for the log.

`plan` has the strategy by number of leases (KCL: LeaseCountBasedLeaseAssignmentDecider); `utilization` balances the
relative load, a worker's value over its fair share (`load`): of several metrics the most loaded one counts. Balancing
must end, so a receiver is always lighter after a move than the giver was before.
"""
