"""What the operating system says of the way to all others, from files as Linux has them."""

import struct
import sys

import pytest

from potluck_agent.net.network_interface import connection, default_route, frequency_hz
from potluck_wire.documents import dump
from potluck_wire.statement import FIELDS

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
{rows}"""
WIFI = "wlan0\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
CABLE = "eth0\t00000000\tFE00A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
NEAR = "eth0\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
DOWN = "ppp0\t00000000\t0100A8C0\t0002\t0\t0\t1\t00000000\t0\t0\t0\n"

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files of Linux")


def system(root, rows, interfaces):
    """The files of a system with these routes and interfaces."""
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/route").write_text(ROUTES.format(rows=rows))
    for name, files in interfaces.items():
        folder = root / "sys/class/net" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            if text is None:
                (folder / file).mkdir()
            else:
                (folder / file).write_text(text)
    return root


ETHERNET = {"type": "1\n", "speed": "1000\n", "device": None}


@linux
@pytest.mark.parametrize(
    ("rows", "interfaces", "expected"),
    [
        (
            NEAR + WIFI + CABLE,
            {"eth0": ETHERNET, "wlan0": {"wireless": None}},
            ("wired", 125e6, "192.168.0.254"),
        ),
        (WIFI, {"wlan0": {"type": "1\n", "wireless": None}}, ("wifi", None, "192.168.0.1")),
        (WIFI, {"wlan0": {"phy80211": None}}, ("wifi", None, "192.168.0.1")),
        (CABLE, {"eth0": {**ETHERNET, "speed": "-1\n"}}, ("wired", None, "192.168.0.254")),
        (CABLE, {"eth0": {**ETHERNET, "speed": "fast\n"}}, ("wired", None, "192.168.0.254")),
        (CABLE, {"eth0": {"type": "1\n", "device": None}}, ("wired", None, "192.168.0.254")),
        # one end of a tunnel: no cable
        (CABLE, {"eth0": {"type": "1\n", "speed": "10000\n"}}, (None, None, "192.168.0.254")),
        (CABLE, {"eth0": {**ETHERNET, "type": "772\n"}}, (None, None, "192.168.0.254")),
        (CABLE, {}, (None, None, "192.168.0.254")),
        (NEAR, {"eth0": ETHERNET}, (None, None, None)),
        (DOWN, {"ppp0": ETHERNET}, (None, None, None)),
        ("", {}, (None, None, None)),
        ("eth0\tgarbage\n" + CABLE, {"eth0": ETHERNET}, ("wired", 125e6, "192.168.0.254")),
    ],
)
def test_what_the_files_of_linux_say(rows, interfaces, expected, tmp_path):
    found = connection(system(tmp_path, rows, interfaces))
    assert (found["kind"], found["bytes_per_s"], found["gateway"]) == expected
    assert FIELDS["connection"][0](found)


@linux
def test_without_files_nothing_is_said(tmp_path):
    assert set(connection(tmp_path).values()) == {None}


def test_this_machine_says_what_a_statement_may():
    assert FIELDS["connection"][0](connection())
    assert dump({"connection": connection()})


def test_the_smallest_metric_is_the_way():
    assert default_route(ROUTES.format(rows=WIFI + CABLE))[0] == "eth0"
    with pytest.raises(ValueError, match="no default route"):
        default_route(ROUTES.format(rows=NEAR))


@pytest.mark.parametrize(
    ("mantissa", "exponent", "expected"),
    [(2437, 6, 2.437e9), (518, 7, 5.18e9), (6, 0, None), (0, 0, None), (1, 30000, 1e9)],
)
def test_the_kernel_tells_a_frequency_or_the_number_of_a_channel(mantissa, exponent, expected):
    answer = struct.pack("16sihBB8x", b"wlan0", mantissa, exponent, 0, 0)
    assert frequency_hz(answer) == expected
