"""Alerts as a contract: sick fleets, what is seen of each, and which alert fires when."""
