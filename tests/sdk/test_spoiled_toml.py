"""Every TOML file that is read here, with something odd in it: it is read, or refused with an error
that names the file; and whatever is read can be used.
"""

import random
from pathlib import Path

import pytest
from tests.toml_mutations import document_of, mutated

import potluck
from potluck.documents import tomllib
from potluck.errors import UserError
from potluck.lab import scenario
from potluck.planning.api import load_plan
from potluck.planning.text import dumps
from potluck.profile import library, network_file
from potluck.records import Plan, Stage

LIBRARY = library.folder()
PLAN = Plan(
    planner="asteroid",
    model="net",
    micro_batch=8,
    n_micro_batches=4,
    latency_s=0.25,
    energy_j=3.5,
    energy_source="measured",
    stages=(
        Stage(start=0, stop=3, devices=("a", "b"), shares=(5, 3), warm_up=3),
        Stage(start=3, stop=9, devices=("c",), shares=(8,)),
    ),
    peak_bytes={"a": 10, "b": 20},
    device_energy_j={"c": 1.5},
    unused={"d": "it holds no part"},
)
NETWORK = """
schema = 1
is_declared = true
[[media]]
name = "air"
kind = "air"
devices = ["a", "b", "notebook"]
up_bytes_per_s = { value = 8e6, error_frac = 0.1, source = "measured" }
latency_s = 0.002
[[media]]
name = "far"
kind = "uplink"
devices = ["c", "d"]
up_bytes_per_s = 1e6
down_bytes_per_s = 4e6
"""
SCRIPT = """
[[events]]
at_s = 3.0
do = "crash"
device = "a"
[[events]]
at_s = 1
do = "bandwidth"
medium = "air"
rate = "8 Mbit/s"
[[events]]
at_s = 2.0
do = "flow"
source = "a"
target = "b"
lasts_s = 5.0
"""


def all_of(kind):
    return [path.read_text() for path in sorted((LIBRARY / kind).glob("*.toml"))]


def use_plan(path):
    plan = load_plan(path)
    assert load_plan_again(plan, path) == plan
    assert repr(plan)


def load_plan_again(plan, path):
    path.write_text(dumps(plan))
    return load_plan(path)


def use_network(path):
    document = network_file.load_network(path)
    network_file.save_network(document, path)
    assert network_file.load_network(path) == document


def use_script(path):
    for event in scenario.read(path):
        scenario.slowed(event, 2.0)


def use_home(path):
    home = library.load_home(path)
    names = [device.name for device in home.devices]
    for source in names:
        for target in names:
            assert source == target or home.network.bandwidth(source, target) >= 0


def refusal_of(use, path):
    try:
        use(path)
    except UserError as error:
        return str(error)
    return None


READERS = {
    "homes": (all_of("homes"), use_home),
    "devices": (all_of("devices"), library.load_device),
    "networks": (all_of("networks"), library.load_network),
    "plan": ([dumps(PLAN)], use_plan),
    "network of a home": ([NETWORK], use_network),
    "script": ([SCRIPT], use_script),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [pytest.param(0), *(pytest.param(i, marks=pytest.mark.long) for i in range(1, 20))]
)
@pytest.mark.parametrize("name", READERS)
def test_an_odd_file_is_read_or_refused_by_its_name(name, seed, tmp_path):
    rng = random.Random(seed)
    texts, use = READERS[name]
    outcomes = set()
    for _ in range(250):
        table = tomllib.loads(rng.choice(texts))
        path = tmp_path / f"{table.get('name', 'file')}.toml"
        path.write_text(document_of(mutated(table, rng)), encoding="utf-8")
        refusal = refusal_of(use, path)
        assert refusal is None or str(path) in refusal
        assert len(refusal or "") < 2000
        outcomes.add("read" if refusal is None else "refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("name", READERS)
def test_as_it_is_each_file_is_read(name, tmp_path):
    texts, use = READERS[name]
    for text in texts:
        table = tomllib.loads(text)
        path = tmp_path / f"{table.get('name', 'file')}.toml"
        path.write_text(document_of(table), encoding="utf-8")
        use(path)


def test_what_a_home_names_by_path_lies_beside_it(tmp_path, monkeypatch):
    """Wherever it is read from; a device that never ends is no file."""
    for folder in ("elsewhere", "home"):
        (tmp_path / folder).mkdir()
    board = (LIBRARY / "devices" / "jetson-nano.toml").read_text()
    (tmp_path / "home" / "board.toml").write_text(board.replace('"jetson-nano"', '"board"', 1))
    home = tmp_path / "home" / "mine.toml"
    text = (
        'name = "mine"\ntitle = "Mine"\nsource = "me"\nhome_at = "a"\nnetwork = "wifi-600"\n'
        '[[devices]]\nname = "a"\nprofile = "board.toml"\n'
    )
    home.write_text(text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert potluck.profile.library.load_home(home).devices[0].kind == "board"
    home.write_text(text.replace("board.toml", "/dev/zero"))
    with pytest.raises(UserError, match=r"mine\.toml: /dev/zero cannot be read: it is no file"):
        library.load_home(home)


def test_the_folder_of_the_library_is_there():
    assert isinstance(LIBRARY, Path)
    assert all(all_of(kind) for kind in ("homes", "devices", "networks"))
