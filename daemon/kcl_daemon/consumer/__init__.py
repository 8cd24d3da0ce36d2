"""One held lease at work: its child process, what is said to it, its checkpoints."""
