"""How busy this worker's CPU is: the sources and the loop that samples them."""
