"""A checker that cannot fail proves nothing: parts of the world that are broken on purpose, each noticed."""
