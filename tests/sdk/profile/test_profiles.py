"""The shipped profiles: every file loads, every number says whence, the papers' homes are as the
papers print them.
"""

from math import inf
from pathlib import Path

import pytest
import tomllib

from potluck.errors import FileError, UserError
from potluck.profile import library
from potluck.records import HOME

PROFILES = Path(__file__).parents[3] / "profiles"
MBIT = 1e6 / 8


def numbers(table, place=""):
    """All tables below `table` that look like a number, with their places; bare numbers too."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict) and "value" in value:
            yield f"{place}.{key}", value
        elif isinstance(value, dict | list):
            yield from numbers(value, f"{place}.{key}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{place}.{key}", value


@pytest.mark.parametrize(
    "path", sorted(PROFILES.glob("*/*.toml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_number_has_source_and_basis(path):
    for place, number in numbers(tomllib.loads(path.read_text(encoding="utf-8"))):
        assert isinstance(number, dict), f"{place} is bare"
        assert number["basis"] in library.BASES, place
        assert number["source"].strip(), place
        if number["basis"] == "estimate" and path.parent.name == "homes":
            assert number["reason"].strip(), place


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["devices", "networks", "homes", "models"])
def test_every_file_loads_by_its_name_and_by_its_path(kind):
    load = {"devices": library.load_device, "networks": library.load_network}.get(
        kind, library.load_home if kind == "homes" else library.load_model
    )
    for name in library.names(kind):
        assert load(name) == load(library.file_of(kind, name))


def test_names_are_the_files_of_the_repository():
    for kind, suffix in library.SUFFIX.items():
        assert library.names(kind) == tuple(
            sorted(path.stem for path in (PROFILES / kind).glob("*" + suffix))
        )


@pytest.mark.parametrize("name", library.names("homes"))
def test_every_home_is_complete_enough_to_plan(name):
    home = library.load_home(name)
    members = [device.name for device in home.devices]
    assert set(home.network.paths) == {
        (a, b) for a in [HOME, *members] for b in [HOME, *members] if a != b
    }
    capacities = {medium.name for medium in home.network.media}
    for path in home.network.paths.values():
        assert {medium for medium, _ in path.media} <= capacities
    for device in home.devices:
        assert device.memory_bytes > 0
        assert device.busy_w > device.idle_w
        assert device.radio_w > 0
        for field in ("peak_fp32_flop_per_s", "memory_bytes_per_s"):
            assert home.specs[device.name].need(field) > 0


# Dora, Tables 2 and 3; Asteroid, Table 6; DeepCEE, section 4.1; Intra-DP, Figure 4.
PAPERS = [
    ("smart-home-1", {"rtx-4060-ti": 2, "rtx-4050-laptop": 3}, 900 * MBIT / 2),
    ("smart-home-2", {"rtx-4050-laptop": 2, "xiaomi-15": 2, "galaxy-s25": 1}, 600 * MBIT / 2),
    ("traffic-monitor", {"genio-720": 2, "genio-520": 2}, 200 * MBIT),
    ("edge-cluster", {"a40": 2, "v100": 2}, 4000 * MBIT),
    ("asteroid-a-100", {"jetson-nano": 5}, 100 * MBIT),
    ("asteroid-a-1000", {"jetson-nano": 5}, 1000 * MBIT),
    ("deepcee-1", {"rtx-4090": 12, "rtx-3090": 6, "rtx-3080": 4}, 100 * MBIT),
    ("deepcee-2", {"rtx-4090": 12, "rtx-3090": 6, "rtx-3080": 4}, 500 * MBIT),
    ("robot-indoors", {"jetson-xavier-nx": 1, "rtx-3080": 1}, 93 * MBIT),
    ("robot-outdoors", {"jetson-xavier-nx": 1, "rtx-3080": 1}, 73 * MBIT),
]


@pytest.mark.parametrize(("name", "devices", "slowest"), PAPERS, ids=[case[0] for case in PAPERS])
def test_homes_are_as_the_papers_print_them(name, devices, slowest):
    home = library.load_home(name)
    kinds = [device.kind for device in home.devices]
    assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == devices
    pairs = [(a.name, b.name) for a in home.devices for b in home.devices if a != b]
    assert min(home.network.bandwidth(*pair) for pair in pairs) == pytest.approx(slowest)


def test_the_notebook_shares_the_place_of_its_device():
    home = library.load_home("smart-home-2")
    assert home.network.bandwidth(HOME, home.home_at) == inf
    assert home.network.paths[HOME, "galaxy"] == home.network.paths[home.home_at, "galaxy"]


def test_a_home_overrides_the_memory_of_its_devices():
    assert library.load_device("a40").device().memory_bytes == 48 * 2**30
    assert {
        d.memory_bytes for d in library.load_home("edge-cluster").devices if d.kind == "a40"
    } == {16 * 2**30}


def test_an_absent_number_is_an_error_that_names_field_and_file():
    spec = library.load_device("genio-520")
    assert spec.get("peak_fp32_flop_per_s") is None
    with pytest.raises(
        FileError, match=r"genio-520\.toml: peak_fp32_flop_per_s of genio-520 is not known.*assume"
    ):
        spec.need("peak_fp32_flop_per_s")


@pytest.mark.parametrize(
    ("kind", "wrong", "near"),
    [
        ("devices", "rtx4050", "rtx-4050-laptop"),
        ("devices", "Jetson_Orin", "jetson-orin-nano"),
        ("devices", "raspbery-pi-5", "raspberry-pi-5"),
        ("homes", "smarthome2", "smart-home-2"),
        ("homes", "Asteroid-A", "asteroid-a-100"),
        ("networks", "wifi600", "wifi-600"),
    ],
)
def test_an_unknown_name_offers_near_names(kind, wrong, near):
    with pytest.raises(UserError, match=near):
        library.file_of(kind, wrong)


def test_an_unknown_kind_and_a_hopeless_name_list_what_there_is():
    with pytest.raises(UserError, match="devices, networks, homes, models"):
        library.names("planets")
    with pytest.raises(UserError, match=r"Known devices: .*jetson-nano"):
        library.load_device("zzzzzz")
