"""Who should hold which lease. Pure: no I/O, no clock, no randomness."""
