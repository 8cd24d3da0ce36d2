"""A model of the Java KCL 3.x worker. It shares no loop and no rule with the daemon; only the rows are the same."""
