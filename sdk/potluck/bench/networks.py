"""The networks of benches; those of `pipeline` are eight like blocks, so that every pipeline can be
cut between two.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Made = tuple["torch.nn.Sequential", "torch.Tensor", "torch.Tensor"]  # network, inputs, targets


def encoder_block(width: int, heads: int) -> "torch.nn.Module":
    """A pre-norm block of a transformer encoder, on [rows, length, width]."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> Any:
            rows, length, _ = x.shape
            mixes = (
                self.qkv(self.norm(x)).view(rows, length, 3, heads, width // heads).transpose(1, 3)
            )
            q, k, v = mixes.unbind(2)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
            return x + self.narrow(nn.functional.gelu(self.wide(self.second_norm(x))))

    return Block()


def transformer(rows: int) -> Made:
    """Eight pre-norm encoder blocks of width 128 on [rows, 32] positions; 1.6 million
    parameters.
    """
    import torch
    from torch import nn

    class Head(nn.Module):
        def __init__(self, block: nn.Module, width: int) -> None:
            super().__init__()
            self.block, self.head = block, nn.Linear(width, 10)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.block(x).mean(1))

    torch.manual_seed(0)
    blocks = [encoder_block(128, 4) for _ in range(8)]
    return (
        nn.Sequential(*blocks[:-1], Head(blocks[-1], 128)),
        torch.randn(rows, 32, 128),
        torch.randint(10, (rows,)),
    )


def cnn(rows: int) -> Made:
    """Eight residual blocks of 24 channels on [rows, 24, 16, 16]."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
            self.first_norm, self.second_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x: torch.Tensor) -> Any:
            inner = torch.relu(self.first_norm(self.first(x)))
            return torch.relu(x + self.second_norm(self.second(inner)))

    class Head(nn.Module):
        def __init__(self, block: nn.Module, width: int) -> None:
            super().__init__()
            self.block, self.head = block, nn.Linear(width, 10)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.block(x).mean((2, 3)))

    torch.manual_seed(0)
    blocks = [Block(24) for _ in range(8)]
    return (
        nn.Sequential(*blocks[:-1], Head(blocks[-1], 24)),
        torch.randn(rows, 24, 16, 16),
        torch.randint(10, (rows,)),
    )


def small(rows: int) -> Made:
    """Eight layers of 256: a step takes a few milliseconds, so that every message shows."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(7)]
    return (
        nn.Sequential(*blocks, nn.Linear(256, 10)),
        torch.randn(rows, 256),
        torch.randint(10, (rows,)),
    )


NETWORKS: Mapping[str, Callable[[int], Made]] = {
    "transformer": transformer,
    "cnn": cnn,
    "small": small,
}
