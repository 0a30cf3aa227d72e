"""Machines that share a host name are not one machine."""

import subprocess
import sys

from potluck_wire.machine_identity import machine_name


def proc(folder, boot_id):
    """What Linux tells of itself after that start."""
    path = folder / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text(f"{boot_id}\n")
    return folder


def test_two_machines_that_kept_the_host_name_of_their_system_are_told_apart(tmp_path):
    first = machine_name(proc(tmp_path / "a", "0b0d-1"))
    assert first == machine_name(proc(tmp_path / "again", "0b0d-1"))
    assert first != machine_name(proc(tmp_path / "b", "0b0d-2"))
    assert "0b0d" not in first  # nobody needs to know it


def test_processes_of_one_machine_call_it_the_same():
    code = "from potluck_wire.machine_identity import machine_name; print(machine_name())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == machine_name()


def test_a_system_that_tells_nothing_of_its_start_has_a_name_still(tmp_path):
    assert machine_name(tmp_path) == machine_name(tmp_path)
