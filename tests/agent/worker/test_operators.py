"""Operators of whole numbers answer whatever the numbers are: none of them ends the worker."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

DIVISIONS = """
import torch
from potluck_agent.worker.operators import function_of
for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
    least = torch.full((9,), torch.iinfo(dtype).min, dtype=dtype)
    for other in (torch.full_like(least, -1), torch.zeros_like(least)):
        for name, *more in [
            ("div.Tensor_mode", {"rounding_mode": "trunc"}), ("remainder.Tensor", {}),
            ("div.Tensor_mode", {"rounding_mode": "floor"}), ("floor_divide.default", {}),
            ("fmod.Tensor", {}),
        ]:
            try:
                function_of("aten." + name, bool(more[0]))(least, other, **more[0])
            except RuntimeError as error:
                assert "ZeroDivisionError" in str(error), error
print("done")
"""


@pytest.mark.long
def test_the_least_number_by_minus_one_ends_no_process():
    ran = subprocess.run([sys.executable, "-c", DIVISIONS], capture_output=True, text=True)
    assert ran.stdout == "done\n", (ran.returncode, ran.stderr)


@pytest.mark.parametrize("mode", ["trunc", "floor", None])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8, torch.float32])
@pytest.mark.parametrize("other", [torch.int64, torch.int32, torch.uint8, torch.float32, -1, 2.5])
def test_divisions_are_those_of_torch(mode, dtype, other):
    from potluck_agent.worker.operators import function_of

    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-9 if dtype.is_signed else 0, 9, (50,), generator=draw).to(dtype)
    y = other
    if isinstance(other, torch.dtype):
        y = torch.randint(1, 4, (50,), generator=draw) * torch.randint(0, 2, (50,)).mul(2).sub(1)
        y = (y if other.is_signed else y.abs()).to(other)
    kind = "Tensor_mode" if isinstance(other, torch.dtype) else "Scalar_mode"
    got = function_of(f"aten.div.{kind}", True)(x, y, rounding_mode=mode)
    expected = torch.div(x, y, rounding_mode=mode)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
