"""What a machine is called by its makers, as its system says."""

import pytest

from potluck_agent.cli.hardware import hardware


def plant(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({}, []),
        (
            {"proc/device-tree/model": b"Raspberry Pi 5 Model B Rev 1.0\0"},
            ["Raspberry Pi 5 Model B Rev 1.0"],
        ),
        (
            {
                "sys/devices/virtual/dmi/id/product_name": b"20XW\n",
                "sys/devices/virtual/dmi/id/product_version": b"ThinkPad X1\n",
                "proc/cpuinfo": b"processor : 0\nmodel name\t: Intel(R) N100\nmodel name : x\n",
            },
            ["20XW", "ThinkPad X1", "Intel(R) N100"],
        ),
        ({"proc/device-tree/model": b"\xff\x00\x1b[2J"}, []),
    ],
    ids=["nothing", "board", "pc", "hostile"],
)
def test_names_of_a_machine(tmp_path, files, names):
    assert hardware(plant(tmp_path, files)) == names


def test_a_long_name_is_cut(tmp_path):
    plant(tmp_path, {"proc/device-tree/model": b"x" * 1000})
    assert [len(name) for name in hardware(tmp_path)] == [128]
