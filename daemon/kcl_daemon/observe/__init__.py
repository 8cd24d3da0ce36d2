"""What the daemon tells of itself."""
