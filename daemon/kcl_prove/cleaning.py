from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kcl_prove.inventory import Inventory, Item, RunIsAtWork, earlier_runs
from kcl_prove.parts import ProveError
from kcl_prove.permissions import caller_of
from kcl_prove.removal import Leftover, leftovers, remove_all, remove_items, run_of
from kcl_prove.session import aws_clients, clients_of, say_not_removed

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """`is_all`: every place could be searched."""

    leftovers: tuple[Leftover, ...]
    is_all: bool


async def clean(state: Path, profile: str | None, say: Say) -> bool:
    """False: something is still there."""
    paths = earlier_runs(state)
    if not paths:
        say(f"no run left anything behind that {state} knows of; `--clean --search` looks in the account")
    return all([await _clean(path, profile, say) for path in paths])


async def _clean(path: Path, profile: str | None, say: Say) -> bool:
    try:
        inventory = Inventory.open(path)
    except RunIsAtWork as error:
        say(str(error))
        return True
    except ProveError as error:
        say(str(error))
        return False
    try:
        return await _remove(inventory, profile, say)
    except ProveError as error:
        say(f"{path.stem}: {error}")
        return False
    finally:
        inventory.close()


async def _remove(inventory: Inventory, profile: str | None, say: Say) -> bool:
    run = inventory.run
    if not inventory.items:
        return True
    clients = clients_of(run, profile)
    try:
        if run.account:
            account = (await caller_of(clients, run.region, None)).account
            if account != run.account:
                raise ProveError(
                    f"it ran in account {run.account}; these credentials are of {account}, use --profile"
                )
        items = inventory.items
        left = await remove_all(inventory, clients)
        say(f"{run.run_id}: removed {len(items) - len(left)} of {len(items)} things in {run.region}")
        say_not_removed(left, say)
        return not left
    finally:
        clients.close()


async def found_leftovers(state: Path, profile: str | None, region: str | None, say: Say) -> Found:
    """Not what a run at work has there."""
    clients = aws_clients(profile, region)
    try:
        everything, problems = await leftovers(clients)
    finally:
        clients.close()
    for problem in problems:
        say(f"could not look everywhere: {problem}")
    at_work = _at_work(state)
    return Found(tuple(each for each in everything if run_of(each.item.name) not in at_work), not problems)


async def remove_leftovers(items: Sequence[Item], profile: str | None, region: str | None, say: Say) -> bool:
    clients = aws_clients(profile, region)
    try:
        left = await remove_items(items, clients, str(clients.session.region_name))
    finally:
        clients.close()
    say(f"removed {len(items) - len(left)} of {len(items)} things in {clients.session.region_name}")
    say_not_removed(left, say)
    return not left


def _at_work(state: Path) -> frozenset[str]:
    found: set[str] = set()
    for path in earlier_runs(state):
        try:
            Inventory.open(path).close()
        except RunIsAtWork:
            found.add(path.stem)
        except ProveError:
            continue  # a file of something else holds no run
    return frozenset(found)
