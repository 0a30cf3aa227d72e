"""Transformer blocks divided by torch's DTensor over gloo: a process per device, steered by lines.

The yardstick of bench `tensor_parallel`: `parallelize_module` with columns, then rows, as Megatron
has it; in plain, without a notebook, the batch on every rank from the start. Run as a module it is
one rank.
"""

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from potluck.bench.torch_ranks import LEARNING_RATE, Ranks, serve

if TYPE_CHECKING:
    import torch

TRAIN, ANSWER = "train", "answer"


class TensorRanks(Ranks):
    """`n` processes, each with its pieces of so many blocks; use as a context manager."""

    _module = "potluck.bench.tensor_ranks"

    def __init__(self, n: int, *, blocks: int, width: int, rows: int, length: int) -> None:
        self._n = n
        self._setting = {"n": n, "blocks": blocks, "width": width, "rows": rows, "length": length}


def blocks_of(n_blocks: int, width: int) -> "torch.nn.Sequential":
    """Pre-norm blocks whose queries, keys and values are products of their own; heads of 32.

    Parameters
    ----------
    n_blocks
        How many, one after the other.
    width
        Of the stream.
    """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
            self.out = nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> Any:
            rows, length, _ = x.shape
            normed = self.norm(x)
            q, k, v = (
                each(normed).view(rows, length, -1, 32).transpose(1, 2)
                for each in (self.q, self.k, self.v)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
            return x + self.narrow(nn.functional.gelu(self.wide(self.second_norm(x))))

    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(n_blocks)))


def batch_of(rows: int, length: int, width: int) -> "tuple[torch.Tensor, torch.Tensor]":
    """Inputs and targets."""
    import torch

    torch.manual_seed(1)
    return torch.randn(rows, length, width), torch.randn(rows, length, width)


class _Rank:
    """This rank's pieces."""

    def __init__(self, setting: dict[str, Any]) -> None:
        import torch
        from torch.distributed import device_mesh
        from torch.distributed.tensor import parallel

        mesh = device_mesh.init_device_mesh("cpu", (setting["n"],))
        self._network = blocks_of(setting["blocks"], setting["width"])
        columns, rows = parallel.ColwiseParallel, parallel.RowwiseParallel
        for block in self._network:
            parallel.parallelize_module(
                block,
                mesh,
                {
                    **{name: columns() for name in ("q", "k", "v", "wide")},
                    **{name: rows() for name in ("out", "narrow")},
                },
            )
        self._optimizer = torch.optim.AdamW(
            self._network.parameters(), LEARNING_RATE, foreach=False
        )
        self._x, self._y = batch_of(setting["rows"], setting["length"], setting["width"])

    def run(self, mode: str, n_steps: int) -> tuple[float, float]:
        """Seconds, and the loss of the last step, or of the last answer."""
        import torch
        from torch import distributed
        from torch.nn.functional import mse_loss

        loss = torch.zeros(())
        distributed.barrier()
        start_s = time.perf_counter()
        for _ in range(n_steps):
            if mode == ANSWER:
                with torch.no_grad():
                    loss = mse_loss(self._network(self._x), self._y)
                continue
            self._optimizer.zero_grad()
            loss = mse_loss(self._network(self._x), self._y)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        distributed.barrier()
        return time.perf_counter() - start_s, loss.item()


if __name__ == "__main__":
    _setting = json.loads(sys.argv[1])
    serve(_setting, lambda: _Rank(_setting).run)
