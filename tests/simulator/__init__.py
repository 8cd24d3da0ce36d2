"""A deterministic simulator: whole fleets of the production daemon in virtual time, every run replayable from a seed."""
