"""Losses that a device sends home are believed only as the type and number that were asked for."""

from types import SimpleNamespace

import pytest

from potluck.errors import ProtocolError
from potluck.run.device_group import losses_of
from potluck.schedule import ReceivedValue
from potluck.sessions.traffic import Raw

ASKED = ReceivedValue(device="tv", value="losses", tensor="", kind="loss", rows=(2, 2))


def checked_loss(dtype: str, shape: tuple[int, ...], n_bytes: int) -> float:
    raw = Raw(dtype=dtype, shape=shape, data=bytearray(n_bytes))
    execution = SimpleNamespace(outputs={("tv", "losses"): raw})
    (loss,) = losses_of(execution, SimpleNamespace(results=[ASKED], n_steps=1))
    return loss


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("int32", (2,)),
        ("bool", (8,)),
        ("uint8", (8,)),
        ("int64", (1,)),
        ("bfloat16", (4,)),
        ("float64", (1,)),
        ("float32", (0,)),
    ],
)
def test_other_losses_name_the_device(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match=r"tv: it sent .* as the losses of 2 micro-batches"):
        checked_loss(dtype, shape, 8)


@pytest.mark.parametrize(("dtype", "n_bytes"), [("float32", 8), ("float64", 16), ("float16", 4)])
def test_losses_in_any_float_are_taken(dtype: str, n_bytes: int) -> None:
    assert checked_loss(dtype, (2,), n_bytes) == 0.0
