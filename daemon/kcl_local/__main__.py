from __future__ import annotations

from kcl_local.server import local

if __name__ == "__main__":
    local(prog_name="python -m kcl_local")
