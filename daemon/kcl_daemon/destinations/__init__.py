"""Where dead letters go: one class in one file each, registered in `config/dead_letters.py`."""
