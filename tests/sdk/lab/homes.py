"""Homes of the lab's tests: slow devices, so that this machine can play them."""

from contextlib import suppress
from pathlib import Path

from potluck.profile.library import HomeSpec, load_home

AIR_BYTES_PER_S = 4e6
WIFI = """
name = "{name}"
title = "Slow boards on one radio channel"
source = "made for a test"
home_at = "{first}"
{network}
{devices}

[assume.raspberry-pi-4]
memory_bytes = {memory}
"""


def write_home(
    folder,
    name="tiny",
    devices=("one", "two", "three"),
    topology="wifi",
    rate=AIR_BYTES_PER_S,
    memory=2**32,
    **wired,
):
    """A TOML file of a home of slow boards; returns its path."""
    number = f'{{ value = {rate}, basis = "estimate", source = "a test" }}'
    least = f'{{ value = {memory}, basis = "estimate", source = "a test", reason = "a test" }}'
    more = "".join(
        f', {field} = {{ value = {value}, basis = "estimate", source = "a test" }}'
        for field, value in wired.items()
    )
    network = f'network = {{ topology = "{topology}", capacity_bytes_per_s = {number}{more} }}'
    rows = "\n".join(
        f'[[devices]]\nname = "{device}"\nprofile = "raspberry-pi-4"\n' for device in devices
    )
    path = folder / f"{name}.toml"
    path.write_text(
        WIFI.format(name=name, first=devices[0], network=network, devices=rows, memory=least)
    )
    return path


def tiny_home(folder, **options) -> HomeSpec:
    """The home of that file, read."""
    return load_home(write_home(folder, **options))


def interfaces() -> set[tuple[str, str]]:
    """Every lab's interface in this namespace, each with a number that no other gets again."""
    found = set()
    for path in Path("/sys/class/net").glob("potluck*"):
        with suppress(OSError):
            found.add((path.name, (path / "ifindex").read_text()))
    return found
