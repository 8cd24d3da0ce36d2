"""Where dead letters go: a class and a file each, registered in `config/dead_letters.py`."""
