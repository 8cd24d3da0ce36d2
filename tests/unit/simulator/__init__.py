"""Tests of the simulator's own parts."""
