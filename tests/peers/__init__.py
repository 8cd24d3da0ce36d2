"""The peer tier: the same tests against programs of other people. Needs Node and npm; `make peers`."""
