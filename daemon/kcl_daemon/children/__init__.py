"""The child processes of the daemon: start, pipes, end."""
