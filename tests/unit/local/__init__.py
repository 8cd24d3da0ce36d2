"""Unit tests of the local endpoints."""
