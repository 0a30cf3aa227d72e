"""Random numbers that do not depend on how a micro-batch is split over devices: masks of dropout,
and noise.

Those of a whole micro-batch are drawn from a generator seeded by (seed, step, micro-batch, node);
each device takes the rows that are its own, in the first dimension. A value that no row has a part
in, such as a weight, gets the same on every device.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from potluck_wire.graph import SegmentError

from . import available_memory


@dataclass(slots=True)
class Masks:
    """Draws the masks; `rows` = (start, stop, total) says which rows of which micro-batch are being
    computed.
    """

    seed: int
    rowless: frozenset[int] = frozenset()  # numbers of nodes whose values no row has a part in
    rows: tuple[int, int, int] | None = None
    step: int = 0
    micro_batch: int = 0

    def draw(
        self, number: int, shape: tuple[int, ...], keep: float, dtype: torch.dtype
    ) -> torch.Tensor:
        """A mask of zeros and 1/keep, made by the CPU: the same on every kind of device."""

        def mask(full_shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
            return _bernoulli(full_shape, keep, dtype, generator)

        return self._rows_of(number, shape, dtype, mask)

    def _rows_of(
        self,
        number: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        drawn: Callable[[tuple[int, ...], torch.Generator], torch.Tensor],
    ) -> torch.Tensor:
        """Of what is drawn for a whole micro-batch, the rows that are being computed."""
        generator = self._generator(number)
        if self.rows is None or number in self.rowless:
            return drawn(shape, generator)
        start, stop, total = self.rows
        rows = stop - start
        if not shape or shape[0] % rows:
            raise SegmentError(
                "bad-input",
                f"random numbers of {list(shape)}: its first dimension is not {rows} rows",
            )
        per_row = shape[0] // rows
        full_shape = (per_row * total, *shape[1:])
        available_memory.require(
            available_memory.bytes_of(
                full_shape, dtype.itemsize, "the random numbers of the whole micro-batch"
            ),
            "its random numbers",
        )
        return drawn(full_shape, generator)[per_row * start : per_row * stop]

    def _generator(self, number: int) -> torch.Generator:
        key = (self.seed, self.step, self.micro_batch, number)
        text = struct.pack("<4Q", *(word % 2**64 for word in key))
        seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
        return torch.Generator().manual_seed(seed)

    def dropout(self, number: int, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """`aten.dropout` with our mask."""
        if not train or p == 0:
            return x
        return x * self.draw(number, tuple(x.shape), 1.0 - p, x.dtype).to(x.device)

    def feature_dropout(self, number: int, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """`aten.feature_dropout` (whole channels) with our mask."""
        if not train or p == 0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return x * self.draw(number, shape, 1.0 - p, x.dtype).to(x.device)

    def rand_like(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """`aten.rand_like` with our numbers."""
        return self._like(number, x, torch.rand)

    def randn_like(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """`aten.randn_like` with our numbers."""
        return self._like(number, x, torch.randn)

    def _like(
        self, number: int, x: torch.Tensor, make: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        def drawn(full_shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
            return make(full_shape, generator=generator, dtype=x.dtype)

        return self._rows_of(number, tuple(x.shape), x.dtype, drawn).to(x.device)

    def attention(
        self,
        number: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        p: float = 0.0,
        causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Attention whose weights are dropped with our mask; without dropout, torch's own."""
        if p == 0:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            times = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
        scores = (
            query * (scale if scale is not None else query.shape[-1] ** -0.5)
        ) @ key.transpose(-2, -1)
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        if mask is not None:
            scores = (
                scores.masked_fill(~mask, float("-inf"))
                if mask.dtype is torch.bool
                else scores + mask
            )
        weights = torch.softmax(scores, -1)
        kept = self.draw(number, tuple(weights.shape), 1.0 - p, weights.dtype)
        return (weights * kept.to(weights.device)) @ value

    def operators(self) -> dict[str, Callable[..., Any]]:
        """What stands in for torch's own random operators in training."""
        return {
            "aten.dropout.default": self.dropout,
            "aten.feature_dropout.default": self.feature_dropout,
            "aten.rand_like.default": self.rand_like,
            "aten.randn_like.default": self.randn_like,
            "aten.scaled_dot_product_attention.default": self.attention,
        }


def _bernoulli(
    shape: tuple[int, ...], keep: float, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    mask = torch.zeros(shape, dtype=dtype)
    return mask.bernoulli_(keep, generator=generator).div_(keep) if keep > 0 else mask
