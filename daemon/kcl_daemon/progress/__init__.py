"""How far each held lease is, what it waits for, and since when that is too long."""
