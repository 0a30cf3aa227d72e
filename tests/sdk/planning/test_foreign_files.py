"""Files that somebody else made: whatever is in them, a plan, a home, a device, a model or a script
is read or is one error of ours, which names the file and holds nothing that a terminal obeys.
"""

import json

import pytest

import potluck
from potluck.discover.keyring import Keyring
from potluck.documents import MAX_DEPTH, read_json, read_toml
from potluck.errors import FileError, PotluckError
from potluck.graph.modelgraph import ModelGraph
from potluck.lab import scenario
from potluck.planning.text import loads
from potluck.profile import library

ESC = "\\u001b]0;pwned\\u0007\\u001b[2J"
TOML = {
    "lists in lists": "x = " + "[" * 100_000 + "]" * 100_000,
    "a few lists in lists": "x = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "tables in tables": "x = " + "{a=" * 20_000 + "1" + "}" * 20_000,
    "tables in tables by name": ".".join(["a"] * 50_000) + " = 1",
    "tables in tables by quoted name": " . ".join(['" "', "'.'"] * 25_000) + " = 1",
    "a table's long name": "[" + ".".join(["a"] * 50_000) + "]",
    "5,000 digits": "x = " + "1" * 5000,
    "400 digits": "micro_batch = 1" + "0" * 400,
    "hexadecimal": "seed = 0x" + "f" * 100_000,
    "past 64 bits": f"x = {2**63}",
    "a strange key": f'"{ESC}" = 1',
    "no TOML": "x = \x1b[2J",
    "nothing": "",
}
JSON = {
    "lists in lists": "[" * 100_000 + "]" * 100_000,
    "objects in objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a few lists in lists": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "5,000 digits": "1" * 5000,
    "past 64 bits": f"[{-(2**63) - 1}]",
    "a strange key": f'{{"{ESC}": 1}}',
    "no JSON": "\x1b[2J",
    "no number": '{"format": NaN}',
    "nothing": "",
}


TOML_READERS = {
    "plan": potluck.load_plan,
    "home": library.load_home,
    "device": library.load_device,
    "script": scenario.read,
    "wiring": library.load_network,
}


def refused(read, path):
    """The error's text; AssertionError where it is none of ours."""
    with pytest.raises(PotluckError) as caught:
        read(path)
    text = str(caught.value)
    assert str(path) in text
    assert all(char.isprintable() or char == "\n" for char in text)
    assert len(text) < 2000
    return text


@pytest.mark.parametrize("what", TOML)
@pytest.mark.parametrize("kind", TOML_READERS)
def test_whatever_toml_holds_it_is_an_error_of_ours(kind, what, tmp_path):
    path = tmp_path / "foreign.toml"
    path.write_text(TOML[what])
    if (kind, what) == ("script", "nothing"):
        assert scenario.read(path) == ()
        return
    refused(TOML_READERS[kind], path)


@pytest.mark.parametrize("what", JSON)
def test_whatever_json_holds_it_is_an_error_of_ours(what, tmp_path):
    path = tmp_path / "foreign.json"
    path.write_text(JSON[what])
    refused(lambda path: ModelGraph.from_text(path.read_text(), str(path)), path)


@pytest.mark.parametrize("what", JSON)
def test_a_broken_key_ring_is_an_error_of_ours(what, tmp_path):
    (tmp_path / "devices.json").write_text(JSON[what])
    refused(lambda path: Keyring(tmp_path).devices(), tmp_path / "devices.json")


def test_what_is_within_the_bounds_is_read_as_it_is():
    document = {"a": [2**63 - 1, -(2**63), 1e308, "\x1b", None, True]}
    assert read_json(json.dumps(document), "f") == document
    assert read_toml("a = [9223372036854775807, 1e308]\n[b.c]\nd = 1979-05-27", "f")["b"]["c"]
    dotted = ".".join(["a"] * MAX_DEPTH) + ' = "' + "1.5 " * 200 + '"'
    assert read_toml(dotted, "f")["a"]["a"]
    nested = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read_json(nested, "f") is not None
    with pytest.raises(FileError, match=r"expected JSON with numbers below 2.*63, got an integer"):
        read_json("[" + "9" * 400 + "]", "f")


def test_no_error_of_ours_holds_what_a_terminal_obeys():
    error = PotluckError("a \x1b[2J\x07b\nc", device="\x9bx", next_step="\u202ed")
    assert str(error) == "�x: a �[2J�b\nc �d"


def test_a_text_that_is_no_plan_says_so_without_a_file():
    with pytest.raises(PotluckError, match="not a plan: the text: expected TOML"):
        loads("x = ")
