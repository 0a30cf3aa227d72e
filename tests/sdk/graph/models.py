"""Small networks of every kind that has to work, each with its loss and an example."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.first, self.second = (
            nn.Conv2d(6, 6, 3, padding=1, bias=False),
            nn.Conv2d(6, 6, 3, padding=1, bias=False),
        )
        self.norm, self.act = nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.head = nn.Linear(6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.stem(x))
        x = self.act(self.norm(self.second(torch.relu(self.first(x)))) + x)
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = (
            nn.Embedding(30, 16),
            nn.Parameter(torch.randn(1, 8, 16) * 0.1),
        )
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position).mean(1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(b, t, 3, self.heads, d // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A language model; `tied` shares the embedding with the head."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30, 16), nn.Embedding(32, 16)
        self.blocks = nn.ModuleList([Block(16, 2), Block(16, 2)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 30, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cnn(dropout: float = 0.25) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    inputs: Callable[[int], torch.Tensor]
    targets: Callable[[int], torch.Tensor]


def _images(rows: int) -> torch.Tensor:
    return torch.randn(rows, 1, 8, 8)


def _tokens(rows: int) -> torch.Tensor:
    return torch.randint(0, 30, (rows, 8))


CASES = {
    "cnn": Case(cnn, nn.CrossEntropyLoss(), _images, lambda n: torch.randint(0, 10, (n,))),
    "residual": Case(
        Residual, nn.CrossEntropyLoss(), _images, lambda n: torch.randint(0, 10, (n,))
    ),
    "encoder": Case(Encoder, nn.CrossEntropyLoss(), _tokens, lambda n: torch.randint(0, 4, (n,))),
    "decoder": Case(Decoder, token_loss, _tokens, _tokens),
}
