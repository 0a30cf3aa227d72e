"""Bad profile files: each is refused with its file, the field, what was expected and what was
there.
"""

import pytest

from potluck.errors import FileError
from potluck.profile import library

DEVICE = """
name = "thing"
title = "A thing"
kind = "board"
backends = ["torch"]
memory_bytes = { value = 4_294_967_296, basis = "specification", source = "its maker" }
idle_w = { value = 0, basis = "measured", source = "a plug meter" }
"""
NETWORK = """
name = "net"
title = "A net"
topology = "sites"
capacity_bytes_per_s = { value = 125e6, basis = "specification", source = "the box" }
[[links]]
sites = ["here", "there"]
there_bytes_per_s = { value = 5e6, basis = "measured", source = "iperf" }
back_bytes_per_s = { value = 1e6, basis = "measured", source = "iperf" }
latency_s = { value = 0.02, basis = "measured", source = "ping" }
"""
HOME = """
name = "mine"
title = "Mine"
source = "me"
home_at = "a"
[[devices]]
name = "a"
profile = "jetson-nano"
[[devices]]
name = "b"
profile = "jetson-tx2"
[network]
topology = "wifi"
capacity_bytes_per_s = { value = 10e6, basis = "measured", source = "iperf" }
[assume.jetson-tx2]
idle_w = { value = 1.5, basis = "estimate", source = "me", reason = "it felt cool" }
"""
LOADERS = {
    "thing": (DEVICE, library.load_device),
    "net": (NETWORK, library.load_network),
    "mine": (HOME, library.load_home),
}


def load(tmp_path, stem, text):
    path = tmp_path / f"{stem}.toml"
    path.write_text(text, encoding="utf-8")
    return LOADERS[stem][1](path)


def test_the_good_files_load(tmp_path):
    thing = load(tmp_path, "thing", DEVICE)
    assert (thing.device("t").name, thing.device("t").idle_w, thing.device("t").busy_w) == (
        "t",
        0,
        None,
    )
    net = load(tmp_path, "net", NETWORK)
    assert (
        net.links[0].there_bytes_per_s,
        net.links[0].back_bytes_per_s,
        net.links[0].latency_s,
    ) == (5e6, 1e6, 0.02)
    mine = load(tmp_path, "mine", HOME)
    assert [device.idle_w for device in mine.devices] == [None, 1.5]
    assert mine.network.bandwidth("a", "b") == 5e6


CASES = [
    (
        "thing",
        'name = "thing"',
        'name = "other"',
        r"name: expected 'thing', as the file is called, got 'other'",
    ),
    (
        "thing",
        'kind = "board"',
        'kind = "toaster"',
        r"kind: expected one of .*board.*, got 'toaster'",
    ),
    ("thing", 'kind = "board"', "", r"kind: expected text, got 'nothing'"),
    ("thing", 'backends = ["torch"]', "backends = [1]", r"backends: expected a list of text"),
    (
        "thing",
        '["torch"]',
        '["onnx"]',
        r"backends: expected some of torch, onnxruntime, got 'onnx'",
    ),
    (
        "thing",
        "4_294_967_296",
        "-1",
        r"memory_bytes\.value: expected a finite number, above 0, got '-1'",
    ),
    ("thing", "4_294_967_296", "0", r"memory_bytes\.value: .*above 0"),
    ("thing", "4_294_967_296", "nan", r"memory_bytes\.value: expected a finite number"),
    ("thing", "4_294_967_296", "true", r"memory_bytes\.value: expected a finite number"),
    ("thing", "4_294_967_296", '"4 GB"', r"memory_bytes\.value: expected a number, got '4 GB'"),
    (
        "thing",
        'basis = "measured"',
        'basis = "felt"',
        r"idle_w\.basis: expected one of measured, .*, got 'felt'",
    ),
    ("thing", ', source = "a plug meter"', "", r"idle_w\.source: expected text, got 'nothing'"),
    ("thing", '"a plug meter"', '" "', r"idle_w\.source: expected text, got 'an empty string'"),
    (
        "thing",
        '"a plug meter"',
        '"a plug meter", when = "now"',
        r"idle_w\.when: expected no such field here",
    ),
    ("thing", "idle_w =", "idle_watts =", r"idle_watts: expected no such field here"),
    ("thing", 'title = "A thing"', 'title = "A thing', r"expected TOML"),
    (
        "net",
        '"sites"\n',
        '"tangle"\n',
        r"topology: expected one of wifi, switch, ring, sites, got 'tangle'",
    ),
    (
        "net",
        "capacity_bytes_per_s",
        "capacity",
        r"capacity_bytes_per_s: expected a number, got 'nothing'",
    ),
    ("net", '["here", "there"]', '["here"]', r"links\[0\]\.sites: expected two sites"),
    (
        "net",
        "back_bytes_per_s",
        "back",
        r"links\[0\]\.back_bytes_per_s: expected a number, got 'nothing'",
    ),
    ("net", 'topology = "sites"', 'topology = "wifi"', r"links: expected no such field here"),
    ("mine", 'home_at = "a"', 'home_at = "z"', r"home_at: expected one of a, b, got 'z'"),
    (
        "mine",
        'name = "b"',
        'name = "a"',
        r"devices\[1\]\.name: expected a name of its own, got 'a'",
    ),
    ("mine", 'name = "b"', 'name = "home"', r"devices\[1\]\.name: expected a name of its own"),
    (
        "mine",
        'basis = "estimate"',
        'basis = "measured"',
        r"assume\.jetson-tx2\.idle_w\.basis: expected one of estimate",
    ),
    (
        "mine",
        ', reason = "it felt cool"',
        "",
        r"assume\.jetson-tx2\.idle_w\.reason: expected text, got 'nothing'",
    ),
    (
        "mine",
        "assume.jetson-tx2",
        "assume.rtx-4090",
        r"assume\.rtx-4090: expected a device of this home",
    ),
    (
        "mine",
        'topology = "wifi"',
        'topology = "sites"\nlinks = 3',
        r"links: expected \[\[links\]\] tables",
    ),
]


@pytest.mark.parametrize(
    ("stem", "old", "new", "message"), CASES, ids=[case[3][:40] for case in CASES]
)
def test_refuses_with_file_field_expected_and_got(tmp_path, stem, old, new, message):
    text = LOADERS[stem][0]
    assert old in text
    with pytest.raises(FileError, match=message) as caught:
        load(tmp_path, stem, text.replace(old, new))
    assert f"{stem}.toml" in str(caught.value)
    assert caught.value.facts["file"].endswith(f"{stem}.toml")


def test_a_device_without_its_memory_loads_but_cannot_be_planned_for(tmp_path):
    spec = load(tmp_path, "thing", DEVICE.replace("memory_bytes", "memory_bytes_per_s"))
    with pytest.raises(FileError, match=r"thing\.toml: memory_bytes of thing is not known"):
        spec.device()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"nowhere\.toml cannot be read"):
        library.load_device(tmp_path / "nowhere.toml")


def test_a_device_that_draws_more_idle_than_busy_is_refused(tmp_path):
    busy = 'busy_w = { value = 1.0, basis = "estimate", source = "me", reason = "it felt cold" }\n'
    with pytest.raises(FileError, match=r"b draws 1\.5 W idle and 1 W busy; expected idle_w"):
        load(tmp_path, "mine", HOME + busy)
