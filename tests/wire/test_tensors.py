"""Lengths of tensors never overflow, and never hide an overflow behind an empty dimension."""

import pytest

from potluck_wire.errors import WireError
from potluck_wire.limits import clip, is_device_name, is_identifier, is_value_name
from potluck_wire.tensors import DTYPES, item_bytes, nbytes


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("float32", (), 4),
        ("float32", (2, 3), 24),
        ("bfloat16", (5,), 10),
        ("bool", (7, 1), 7),
        ("int64", (3, 0, 9), 0),
        ("uint8", (2**53,), 2**53),
    ],
)
def test_bytes_of_a_tensor(dtype, shape, expected):
    assert nbytes(dtype, shape) == expected


@pytest.mark.parametrize(
    "shape",
    [
        (2**53,),
        (2**60,),
        (2**30, 2**30),
        (0, 2**40, 2**40),
        (2**40, 2**40, 0),
        (-1,),
        (True,),
        (2.0,),
        (1,) * 17,
    ],
)
def test_refuses_a_shape(shape):
    with pytest.raises(WireError):
        nbytes("float32", shape)


@pytest.mark.parametrize(
    "dtype", ["", "object", "O", "complex64", "torch.float32", "FLOAT32", "str"]
)
def test_refuses_a_dtype(dtype):
    with pytest.raises(WireError):
        item_bytes(dtype)


def test_item_sizes_are_those_of_the_names():
    for dtype, size in DTYPES.items():
        bits = "".join(filter(str.isdigit, dtype))
        assert size == (int(bits) // 8 if bits else 1)


@pytest.mark.parametrize(
    ("name", "device", "identifier", "value"),
    [
        ("jetson-2", True, True, True),
        ("Jetson", False, True, True),
        ("", False, False, False),
        ("a" * 41, False, True, True),
        ("a" * 65, False, False, True),
        ("a" * 201, False, False, False),
        ("run/1", False, False, True),
        ("jetson\n", False, False, False),
        ("jet son", False, False, False),
        ("j\u00e4tson", False, False, False),
        ("\u0661", False, False, False),
        (None, False, False, False),
        (b"jetson", False, False, False),
    ],
)
def test_names(name, device, identifier, value):
    assert (is_device_name(name), is_identifier(name), is_value_name(name)) == (
        device,
        identifier,
        value,
    )


@pytest.mark.parametrize("text", ["", "short", "x" * 512, "x" * 9999, "\u20ac" * 9999, "x\ud800y"])
def test_clipped_texts_are_prefixes_that_fit(text):
    clipped = clip(text)
    assert len(clipped.encode()) <= 512
    assert text.encode(errors="replace").decode().startswith(clipped)
