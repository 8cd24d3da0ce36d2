"""One held lease at work: its child process, deliveries, checkpoints."""
