"""What bears on records, in pairs: the factors, which of their values may be together, and the rows that are played."""
