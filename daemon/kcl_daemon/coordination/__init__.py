"""Loops around the pure parts: they read through a port, ask for a decision, write through a port."""
