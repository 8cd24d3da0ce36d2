from __future__ import annotations

from importlib import import_module

from kcl_daemon.config.landing import LandingSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.text import masked, on_one_line


def landing_finding(settings: Settings) -> tuple[bool, str]:
    """Writes nothing. Blocks until the store has answered."""
    landing = settings.landing
    where = masked(f"landing {landing.uri}")
    # By name: only this needs pyarrow.
    manifests, store = (import_module(f"kcl_landing.{name}") for name in ("manifests", "store"))
    refused = import_module("kcl_landing.control").Refused
    try:
        opened = store.open_store(
            landing.uri, endpoint=landing.endpoint or "", region=settings.endpoints.region_name or ""
        )
        opened.read("_kcl_landing.json")
        info = manifests.known_log(opened)
    except store.NoObject:
        return True, f"{where}: no log yet; the daemon creates it"
    except (refused, store.StoreTrouble) as error:
        return False, masked(on_one_line(f"{where}: {error}"))
    return _compared(where, landing, settings.application_name, (info.application, info.layout, info.format))


def _compared(
    where: str, landing: LandingSettings, application: str, there: tuple[str, str, str]
) -> tuple[bool, str]:
    wanted = (application, landing.layout, landing.format)
    words = ", ".join(there)
    if there != wanted:
        return (
            False,
            f"{where}: it has another log ({words}), not {', '.join(wanted)}; set landing to a prefix of its own",
        )
    return True, f"{where}: the log is there ({words})"
