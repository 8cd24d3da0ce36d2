"""An hour and more of one worker, and what it takes in memory: `python -m tests.simulator.soak.play`."""
