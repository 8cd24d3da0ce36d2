"""The adapters that tell how busy this worker's CPU is, and the loop that gathers what they tell."""
