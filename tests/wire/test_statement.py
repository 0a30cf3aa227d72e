"""A capability statement is believed only as far as its types hold; new keys are no error."""

import json

import pytest

from potluck_wire.documents import dump
from potluck_wire.errors import WireError
from potluck_wire.limits import MAX_FACTS_BYTES, MAX_STATEMENT_BYTES
from potluck_wire.processors import row
from potluck_wire.statement import FIELDS, read, read_facts

GOOD = {
    "name": "jetson",
    "memory_bytes": 2**32,
    "backends": {"torch": "2.13.0"},
    "dtypes": ["float32"],
    "operators": [],
}


def test_what_it_leaves_out_is_at_its_default():
    statement = read(dump(GOOD))
    assert set(statement) == set(FIELDS)
    assert (statement["battery_frac"], statement["meters"], statement["host"]) == (None, [], "")


def test_a_newer_agent_may_say_more():
    assert read(dump({**GOOD, "camera": {"lenses": 2}}))["camera"] == {"lenses": 2}


WRONG = {
    "name": "Jetson Nano",
    "memory_bytes": 0,
    "backends": ["torch"],
    "dtypes": "float32",
    "operators": [1],
    "host": None,
    "platform": 3,
    "cores": 4.0,
    "threads": "4",
    "processors": ["cpu"],
    "hardware": "Raspberry Pi 5",
    "connection": {"kind": "wired", "ssid": "ours"},
    "battery_frac": True,
    "meters": [{"name": "ina3221"}],
    "rules": "only on mains",
    "leaving": False,
    "bounds": {"network": True},
    "power": {"idle_w": "2"},
    "emulated": {"factor": 2},
    "overhead_s": [],
    "copy_bytes_per_s": -1.0,
    "version": 1,
    "max_value_bytes": 2**60,
    "kept_bytes": "4GiB",
}


@pytest.mark.parametrize("key", FIELDS)
def test_refuses_another_type(key):
    with pytest.raises(WireError):
        read(dump({**GOOD, key: WRONG[key]}))


@pytest.mark.parametrize(
    "connection",
    [
        [],
        {"kind": "pigeon"},
        {"kind": ["wifi"]},
        {"kind": "wifi", "frequency_hz": "2.4 GHz"},
        {"bytes_per_s": -1},
        {"bytes_per_s": float("inf")},
        {"gateway": ""},
        {"gateway": "x" * 65},
        {"gateway": "10.0.0.1\n\x1b[2J"},
        {"gateway": 1},
    ],
)
def test_refuses_a_connection_that_no_system_has(connection):
    with pytest.raises(WireError):
        read(json.dumps({**GOOD, "connection": connection}).encode())


@pytest.mark.parametrize("connection", [None, {}, {"kind": None, "gateway": "fe80::1%eth0"}])
def test_a_system_may_say_nothing_of_its_connection(connection):
    assert read(dump({**GOOD, "connection": connection}))["connection"] == connection


CPU = {"name": "Cortex-A72", "kind": "cpu"}


@pytest.mark.parametrize(
    "processors",
    [
        {},
        [[]],
        [{"name": "a processor of no kind"}],
        [{"kind": "cpu"}],
        [CPU | {"name": "x" * 201}],
        [CPU | {"name": "i5\n\x1b[2J"}],
        [CPU | {"kind": ""}],
        [CPU | {"kind": ["cpu"]}],
        [CPU | {"kind": "c" * 41}],
        [CPU | {"memory_bytes": -1}],
        [CPU | {"memory_bytes": 2.5}],
        [CPU | {"dtypes": "float32"}],
        [CPU | {"dtypes": ["float32"] * 4097}],
        [CPU | {"flops_per_s": -1}],
        [CPU | {"flops_per_s": 1.1e15}],
        [CPU | {"flops_per_s": 5e-324}],
        [CPU | {"flops_per_s": float("inf")}],
        [CPU | {"threads": True}],
        [CPU | {"threads": "4"}],
        [CPU | {"used": None}],
        [CPU | {"reason": None}],
        [CPU | {"reason": "none\x07"}],
        [CPU | {"reason": "x" * 401}],
        [CPU] * 65,
    ],
)
def test_refuses_processors_that_no_device_has(processors):
    with pytest.raises(WireError):
        read(json.dumps({**GOOD, "processors": processors}).encode())


@pytest.mark.parametrize(
    "processor",
    [CPU, CPU | {"flops_per_s": None, "threads": None}, CPU | {"clock_hz": 2e9}, row("", "npu")],
)
def test_a_newer_agent_may_have_other_processors(processor):
    assert read(dump({**GOOD, "processors": [processor]}))["processors"] == [processor]


def test_a_row_of_a_processor_is_fit_for_the_statement_whatever_a_driver_said():
    wild = row("i5\x1b[2J" * 99, "cuda", used=False, reason="it failed\nat\x00 last" * 99)
    assert read(dump({**GOOD, "processors": [wild]}))["processors"] == [wild]


@pytest.mark.parametrize("key", GOOD)
def test_refuses_one_without(key):
    with pytest.raises(WireError, match=key):
        read(dump({name: value for name, value in GOOD.items() if name != key}))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b'{"name":"a","name":"b"}', b"\xff"])
def test_refuses_what_is_no_object(data):
    with pytest.raises(WireError):
        read(data)


@pytest.mark.parametrize(
    "version", ["zzz", "", "1", "1.0.0", "\x1b[2J", "1." + "9" * 400, 1.0, None]
)
def test_a_version_that_nobody_can_read_is_refused_at_once(version):
    with pytest.raises(WireError, match="version"):
        read(dump({**GOOD, "version": version}))
    assert read(dump(GOOD))["version"] == "1.0"


RATES = ({"copy_bytes_per_s": 1}, {"power": {"idle_w": 1}}, {"emulated": {"link_bytes_per_s": 1}})


def with_number(entry, number):
    """That statement with this number in the place of the one."""
    return {
        key: dict.fromkeys(value, number) if isinstance(value, dict) else number
        for key, value in entry.items()
    }


@pytest.mark.parametrize("number", [1.7e308, 1.1e15, 5e-324, 1e-300, -1e-300, 2**62])
@pytest.mark.parametrize("entry", RATES)
def test_numbers_that_no_plan_can_be_reckoned_with_are_refused(entry, number):
    with pytest.raises(WireError):
        read(dump({**GOOD, **with_number(entry, number)}))


@pytest.mark.parametrize("number", [0, 0.0, 1e-3, 1, 1e9, 1e15])
@pytest.mark.parametrize("entry", RATES)
def test_numbers_of_any_device_are_taken(entry, number):
    assert read(dump({**GOOD, **with_number(entry, number)}))


@pytest.mark.parametrize(
    ("overhead_s", "is_taken"), [(0, 1), (1e-6, 1), (1e6, 1), (1e7, 0), (1e308, 0)]
)
def test_an_overhead_is_no_longer_than_some_days(overhead_s, is_taken):
    document = dump({**GOOD, "overhead_s": overhead_s})
    if is_taken:
        assert read(document)["overhead_s"] == overhead_s
        return
    with pytest.raises(WireError, match="overhead_s"):
        read(document)


FACTS = {"backends": {}, "dtypes": [], "operators": []}


@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f954", "\x1f"])
@pytest.mark.parametrize("n_names", [1, 60, 200, 800, 4096])
def test_every_notebook_reads_a_welcome_with_what_the_agent_takes_from_its_worker(
    character, n_names
):
    said = json.dumps(FACTS | {"operators": [character * 400] * n_names}, ensure_ascii=False)
    if len(json.dumps(json.loads(said))) > MAX_FACTS_BYTES:
        with pytest.raises(WireError, match="size"):
            read_facts(said.encode())
    else:
        assert len(dump({**GOOD, **read_facts(said.encode())})) <= MAX_STATEMENT_BYTES
