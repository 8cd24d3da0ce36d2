"""Registered in `config/dead_letters.py`."""
