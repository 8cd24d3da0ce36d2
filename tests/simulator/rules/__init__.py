"""What must be true, looked at in each step: the checkers, and the truth that they compare with."""
