"""The adapter for real child processes."""
