"""The peer tier: the same tests against programs of other people. Needs Node, npm, Go and Maven; `make peers`."""
