"""The tests are tested: a small fault is put into a rule, and a test must fail."""
