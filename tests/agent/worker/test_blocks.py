"""Values as int8 with a scale for each block: near enough, as small in both directions, and
refused where they cannot be.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from potluck_agent.worker.blocks import LEAST, OVERLOADS, packed, unpacked

PACK, UNPACK = OVERLOADS.values()


@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 2), st.data())
def test_no_entry_is_further_off_than_half_a_step(rows, tokens, width, n_leading, data):
    seed, magnitude = data.draw(st.integers(0, 99)), data.draw(st.sampled_from((1e-20, 1.0, 1e20)))
    x = torch.randn(rows, tokens, width, generator=torch.Generator().manual_seed(seed)) * magnitude
    block = list(x.shape[n_leading:])
    items = packed(x, n_leading)
    n_entries = width if n_leading == 2 else tokens * width
    assert list(items.shape) == [*x.shape[:n_leading], -(-n_entries // 4) + 1]
    found = unpacked(items, block)
    over = tuple(range(n_leading, 3))
    half = x.abs().amax(over, keepdim=True) / 127 / 2
    assert found.shape == x.shape
    assert bool(((found - x).abs() <= 1.001 * half).all())


def test_by_hand():
    x = torch.tensor([[127.0, -63.5, 0.49, 1.5, 2.5], [0.0, 0.0, 0.0, 0.0, 0.0]])
    items = packed(x, 1)
    assert items.shape == (2, 3)
    assert items[:, -1].tolist() == pytest.approx([1.0, LEAST])
    # halves to the even one
    assert unpacked(items, [5]).tolist() == [[127.0, -64.0, 0.0, 2.0, 2.0], [0.0] * 5]


def bits(items):
    """Steps are bits, not numbers: some of them are no number at all as a float32."""
    return items.contiguous().view(torch.int32)


def test_layout_in_memory_does_not_matter():
    x = torch.randn(4, 6, 3).transpose(1, 2)
    assert torch.equal(bits(packed(x, 1)), bits(packed(x.contiguous(), 1)))
    items = packed(x, 2)
    assert torch.equal(unpacked(items.transpose(0, 1), [6]), unpacked(items, [6]).transpose(0, 1))


STEPS = {"quiet": [3.0, -5.0, -1.0, -1.0, 127.0], "signalling": [3.0, 1.0, -127.0, 127.0, 1.0]}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps_whose_bits_are_no_number_stay_as_they_are(steps):
    """On their way they are copied, sliced by rows, joined and kept as gradients."""
    x = torch.tensor([steps, [1.0] * 5])
    items = packed(x, 1)
    assert items[0, 0].isnan()
    crossing = torch.cat([items[1:], items[:1]])[torch.tensor([1, 0])].clone()
    assert torch.equal(bits(crossing), bits(items))
    values = torch.zeros(2, 5, requires_grad=True)
    PACK(values, 1).backward(items)  # as a gradient that came from elsewhere
    assert torch.equal(values.grad, x)
    crossing = items.detach().requires_grad_()
    UNPACK(crossing, [5]).backward(x)
    assert torch.equal(bits(crossing.grad), bits(items))


def test_a_gradient_is_rounded_as_a_value_is_and_crosses_as_small():
    x, gradient = torch.randn(3, 7, requires_grad=True), torch.randn(3, 7)
    items = PACK(x, 1)
    crossing = items.detach().requires_grad_()
    UNPACK(crossing, [7]).backward(gradient)
    assert crossing.grad.shape == items.shape == (3, 3)
    assert torch.equal(bits(crossing.grad), bits(packed(gradient, 1)))
    items.backward(crossing.grad)
    assert torch.equal(x.grad, unpacked(packed(gradient, 1), [7]))


def test_a_gradient_of_nothing_is_nothing():
    x = torch.randn(2, 5, requires_grad=True)
    items = PACK(x, 1)
    items.backward(torch.zeros_like(items))
    assert torch.equal(x.grad, torch.zeros(2, 5))


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(odd):
    x = torch.ones(2, 6)
    x[1, 3] = odd
    found = unpacked(packed(x, 1), [6])
    assert torch.equal(found[0], x[0])
    assert not found[1, 3].isfinite()


REFUSED = {
    "integers": lambda: packed(torch.ones(2, 3, dtype=torch.int64), 1),
    "doubles": lambda: packed(torch.ones(2, 3, dtype=torch.float64), 1),
    "no block": lambda: packed(torch.ones(3), 1),
    "nothing leads": lambda: packed(torch.ones(2, 3), 0),
    "all leads": lambda: packed(torch.ones(2, 3), 2),
    "an empty block": lambda: packed(torch.ones(2, 0), 1),
    "too few items": lambda: unpacked(torch.ones(2, 2), [9]),
    "too many items": lambda: unpacked(torch.ones(2, 9), [9]),
    "a huge block": lambda: unpacked(torch.ones(2, 2), [2**62, 2**62]),
    "below zero": lambda: unpacked(torch.ones(2, 2), [-2, -2]),
    "a single number": lambda: unpacked(torch.tensor(1.0), [1]),
    "items of another type": lambda: unpacked(torch.ones(2, 2, dtype=torch.int32), [4]),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ValueError, match=r"float32|packed|items"):
        call()
