"""Tests of kcl-daemon; a package only so that its tiers can share helpers."""
