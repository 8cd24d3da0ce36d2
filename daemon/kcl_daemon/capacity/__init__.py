"""How far behind a fleet is, when it will have caught up, what holds it back, how many workers it wants. No I/O, no clock."""
