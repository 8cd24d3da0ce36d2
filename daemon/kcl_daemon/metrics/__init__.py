"""What the daemon counts and times."""
