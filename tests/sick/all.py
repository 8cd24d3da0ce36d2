"""All sicknesses, the worst first."""

from __future__ import annotations

from typing import Final

from tests.sick.fleets import FLEETS
from tests.sick.records import RECORDS
from tests.sick.sickness import Sickness

SICKNESSES: Final[tuple[Sickness, ...]] = (*FLEETS, *RECORDS)
