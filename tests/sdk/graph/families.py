"""Small networks of the families that split inference has to get right, with odd sizes."""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from potluck.graph.model import Model


def _conv(
    n_in: int, n_out: int, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


class Residual(nn.Module):
    """A residual block, with a projection where the size changes."""

    def __init__(self, n_in: int, n_out: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(n_in, n_out, 3, stride, groups), nn.Conv2d(n_out, n_out, 3, padding=1)
        )
        self.short = (
            nn.Identity() if (n_in, stride) == (n_out, 1) else nn.Conv2d(n_in, n_out, 1, stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


class Dense(nn.Module):
    """Every layer sees all before it (DenseNet)."""

    def __init__(self, n_in: int, growth: int, n: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv(n_in + i * growth, growth) for i in range(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class ConvNext(nn.Module):
    """A wide depthwise window, then normalisation and products over channels last (ConvNeXt)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.window, self.norm = nn.Conv2d(n, n, 7, padding=3, groups=n), nn.LayerNorm(n)
        self.wide, self.narrow = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.window(x).permute(0, 2, 3, 1))
        return x + self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)


class Squeezed(nn.Module):
    """Grouped convolution and a gate that looks at the whole image (RegNet, EfficientNet)."""

    def __init__(self, n: int, groups: int) -> None:
        super().__init__()
        self.body, self.gate = (
            _conv(n, n, 5, groups=groups),
            nn.Sequential(nn.Conv2d(n, n, 1), nn.Hardsigmoid()),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return nn.functional.hardswish(y * self.gate(nn.functional.adaptive_avg_pool2d(y, 1)))


class UNet(nn.Module):
    """Down and up again, by transposed convolutions, with a skip; dilation.

    Both kinds of pooling; two outputs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), _conv(8, 16, 3, 2)
        self.up = nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1)
        self.up_plain = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.dilated = nn.Conv2d(12, 2, 3, padding=2, dilation=2)
        self.pool, self.mean = nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.relu(self.first(x))
        b = self.down(a)
        mask = self.dilated(torch.cat([self.up(b), self.up_plain(b)], 1))
        near = nn.functional.interpolate(self.pool(a), scale_factor=2.0, mode="nearest")
        edge = nn.functional.pad(self.mean(near) + a, (1, 2, 3, 1))
        return mask, nn.functional.pixel_shuffle(edge, 2).flatten(2).transpose(1, 2)


class Detector(nn.Module):
    """A backbone with heads at two scales: boxes and scores of each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Sequential(_conv(3, 8, 3, 2), Residual(8, 8)), _conv(8, 16, 3, 2)
        self.boxes = nn.ModuleList([nn.Conv2d(8, 4, 1), nn.Conv2d(16, 4, 1)])
        self.scores = nn.ModuleList([nn.Conv2d(8, 3, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scales = [y := self.stem(x), self.deep(y)]
        boxes = [
            head(y).flatten(2).transpose(1, 2) for head, y in zip(self.boxes, scales, strict=True)
        ]
        fine = nn.functional.interpolate(scales[1], size=scales[0].shape[2:], mode="bilinear")
        scales = [scales[0] + fine[:, :8], scales[1]]
        scores = [head(y).sigmoid() for head, y in zip(self.scores, scales, strict=True)]
        return torch.cat(boxes, 1), *scores


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, two blocks of attention."""

    def __init__(self, width: int = 16, patches: int = 16) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, patches + 1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.mixes = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.joins = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.position
        b, n, c = x.shape
        for i, (mix, join, net) in enumerate(zip(self.mixes, self.joins, self.nets, strict=True)):
            q, k, v = (
                mix(self.norms[2 * i](x))
                .reshape(b, n, 3, 4, c // 4)
                .permute(2, 0, 3, 1, 4)
                .unbind(0)
            )
            heads = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + join(heads.transpose(1, 2).reshape(b, n, c))
            x = x + net(self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x)[:, 0])


class Fourier(nn.Module):
    """Global filters (GFNet), and phases: complex numbers between operators, some conjugated."""

    def __init__(self, n: int, height: int, width: int) -> None:
        super().__init__()
        self.before, self.after = _conv(3, n), nn.Conv2d(3 * n, 4, 3, padding=1)
        self.filter = nn.Parameter(torch.randn(n, height, width // 2 + 1, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        waves = torch.fft.rfft2(x)
        kept = torch.fft.irfft2(waves * torch.view_as_complex(self.filter), s=x.shape[-2:])
        rows = torch.fft.fft(x, dim=3)
        turned = (rows.conj() * rows.roll(1, 1)).real
        return self.after(torch.cat([kept, turned, rows.imag], 1))


def _head(n: int, *body: nn.Module) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 5))


# family -> (the network, the size of its image)
FAMILIES = {
    "vgg": (
        lambda: _head(16, _conv(3, 8), nn.MaxPool2d(2), _conv(8, 16), nn.MaxPool2d(2)),
        (27, 18),
    ),
    "resnet": (
        lambda: _head(
            16, _conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), Residual(8, 8), Residual(8, 16, 2)
        ),
        (45, 32),
    ),
    "densenet": (
        lambda: _head(12, _conv(3, 6), Dense(6, 4, 3), nn.Conv2d(18, 12, 1), nn.AvgPool2d(2)),
        (23, 16),
    ),
    "convnext": (lambda: _head(8, nn.Conv2d(3, 8, 4, 4), ConvNext(8), ConvNext(8)), (52, 32)),
    "regnet": (
        lambda: _head(16, _conv(3, 16, 3, 2), Residual(16, 16, 1, 4), Squeezed(16, 4)),
        (31, 20),
    ),
    "mobilenet": (
        lambda: _head(
            16, _conv(3, 8, 3, 2), _conv(8, 8, 3, 1, 8), nn.Conv2d(8, 16, 1), Squeezed(16, 16)
        ),
        (33, 24),
    ),
    "unet": (UNet, (34, 20)),
    "detector": (Detector, (39, 24)),
    "vit": (VisionTransformer, (16, 16)),
    "signal": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 8, 5, 2, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 4, 3)
        ),
        (61,),
    ),
    "volumes": (
        lambda: nn.Sequential(
            *(nn.Conv3d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2)),
            nn.Conv3d(4, 3, (3, 1, 2), (2, 1, 1), dilation=(1, 2, 1)),
        ),
        (17, 9, 6),
    ),
}

TORCH_ALONE = {"fourier": (lambda: Fourier(4, 12, 9), (12, 9))}  # that ONNX has no operators for


def family(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network in evaluation, with fixed weights and running statistics of its own, and a batch of
    two images.
    """
    torch.manual_seed(7)
    make, size = (FAMILIES | TORCH_ALONE)[name]
    net = make()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return net.eval(), torch.randn(2, 3, *size)


def as_onnx(net: nn.Module, x: torch.Tensor) -> Model:
    """The network from its ONNX file, made of torch's operators."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "net.onnx"
        torch.onnx.export(
            net, (x,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}}
        )
        return Model.from_onnx(path).as_torch()
