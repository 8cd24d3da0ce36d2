"""How far each held lease is, what it waits for, and whether it is stalled."""
