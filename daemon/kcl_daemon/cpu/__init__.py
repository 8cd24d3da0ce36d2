"""How busy this worker's CPU is."""
