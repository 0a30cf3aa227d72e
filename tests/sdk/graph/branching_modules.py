"""Small networks with parallel branches."""

import torch
from torch import nn


class TwoEncoders(nn.Module):
    """An image and a sound, each with an encoder of its own, and a head that reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 64, 16),
        )
        self.audio = nn.Sequential(
            nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16)
        )
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, image: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.vision(image), self.audio(sound)], 1))

    @staticmethod
    def example(rows: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(rows, 1, 8, 8), torch.randn(rows, 32)


class ForkedStem(nn.Module):
    """Two branches of one stem, written in turns, and a skip connection around both: three readers
    of one tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 32), nn.Linear(32, 4)
        self.a = nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 32)])
        self.b = nn.ModuleList([nn.Linear(32, 48), nn.Linear(48, 32)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        y, z = self.a[0](x), self.b[0](x)
        y, z = torch.relu(y), torch.tanh(z)
        y, z = self.a[1](y), self.b[1](z)
        return self.head(torch.relu((y + z) + x))

    @staticmethod
    def example(rows: int) -> tuple[torch.Tensor, ...]:
        return (torch.randn(rows, 8),)
