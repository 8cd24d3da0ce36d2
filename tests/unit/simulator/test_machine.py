"""Process ids of simulated hosts."""

from __future__ import annotations

from tests.simulator.fleet.machine import Machine


def _start(machine: Machine) -> int:
    pid = machine.new_pid()
    machine.processes[pid] = 0
    return pid


def test_the_number_of_a_dead_process_comes_again() -> None:
    machine = Machine("boot")
    started = [_start(machine) for _ in range(3)]
    del machine.processes[started[0]]
    assert _start(machine) == started[0]


def test_there_is_a_number_for_each_of_many_living_processes() -> None:
    machine = Machine("boot")
    assert len({_start(machine) for _ in range(10)}) == 10
