"""The rules of capacity against shapes of load, as fluid: `python -m tests.simulator.capacity.shapes`."""
