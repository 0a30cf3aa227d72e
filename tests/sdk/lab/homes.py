"""Homes of the lab's tests: slow devices, so that this machine can play them."""

from contextlib import suppress
from pathlib import Path

from potluck.profile.library import HomeSpec, load_home

AIR_BYTES_PER_S = 4e6
HOME = """
name = "{name}"
title = "Slow boards"
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
    sites=(),
    links="",
    **wired,
):
    """A TOML file of a home of slow boards; returns its path. `sites`: one for each device."""
    number = f'{{ value = {rate}, basis = "estimate", source = "a test" }}'
    least = f'{{ value = {memory}, basis = "estimate", source = "a test", reason = "a test" }}'
    more = "".join(
        f', {field} = {{ value = {value}, basis = "estimate", source = "a test" }}'
        for field, value in wired.items()
    )
    more += f", links = [{links}]" if links else ""
    network = f'network = {{ topology = "{topology}", capacity_bytes_per_s = {number}{more} }}'
    at = [f'site = "{site}"\n' for site in sites] or [""] * len(devices)
    rows = "\n".join(
        f'[[devices]]\nname = "{device}"\nprofile = "raspberry-pi-4"\n{site}'
        for device, site in zip(devices, at, strict=True)
    )
    path = folder / f"{name}.toml"
    path.write_text(
        HOME.format(name=name, first=devices[0], network=network, devices=rows, memory=least)
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
