"""Networks that the catalog needs and transformers lacks, as plain torch modules: VGG-19,
DenseNet-121, and a multimodal model in the shape of Qwen2.5-Omni's thinker: vision and audio
encoders side by side, then a decoder."""

# mypy: disable-error-code=no-any-return
# Calling a module is typed as Any in torch.

import torch
from torch import Tensor, nn
from torch.nn import functional


def vgg19() -> nn.Module:
    """VGG-19 without batch norm: Simonyan and Zisserman 2015, Table 1, configuration E."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [
        nn.Flatten(),
        nn.Linear(512 * 49, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 1000),
    ]
    return nn.Sequential(*layers, *head)


class DenseLayer(nn.Module):
    """Norm, relu, 1x1, norm, relu, 3x3; its input goes on beside its 32 new channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.new = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 128, 1, bias=False)),
            *(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.new(x)], 1)


def densenet121() -> nn.Module:
    """DenseNet-121, growth 32: Huang et al. 2017, Table 1."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    channels = 64
    for block, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            layers.append(DenseLayer(channels))
            channels += 32
        if block < 3:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels // 2, 1, bias=False),
            ]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
    layers += [
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 1000),
    ]
    return nn.Sequential(*layers)


class Attention(nn.Module):
    """Self-attention of `heads` query heads over `shared` key-value heads."""

    def __init__(self, width: int, heads: int, shared: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.shared = shared
        self.causal = causal
        self.size = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, shared * self.size)
        self.value = nn.Linear(width, shared * self.size)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        query = self.query(x).view(rows, tokens, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(rows, tokens, self.shared, self.size).transpose(1, 2)
        value = self.value(x).view(rows, tokens, self.shared, self.size).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=bias), nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class TransformerBlock(nn.Module):
    """A transformer block, norms first."""

    def __init__(
        self, attention: Attention, mlp: nn.Module, norm: type[nn.Module], width: int
    ) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.attention = attention
        self.norm2 = norm(width)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vision(nn.Module):
    """32 blocks of width 1280 over patches of 14 x 14 pixels, 2 x 2 of them merged into one token
    at the end.
    """

    def __init__(self, out: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 1280, 14, stride=14, bias=False)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(
                    Attention(1280, 16, 16, causal=False),
                    Gated(1280, 3420, bias=True),
                    nn.RMSNorm,
                    1280,
                )
                for _ in range(32)
            )
        )
        self.norm = nn.RMSNorm(1280)
        self.merge = nn.Sequential(nn.Linear(5120, 5120), nn.GELU(), nn.Linear(5120, out))

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.patches(pixels).flatten(2).transpose(1, 2)))
        return self.merge(x.reshape(x.shape[0], x.shape[1] // 4, 5120))


class Audio(nn.Module):
    """Two convolutions over 128 mel bands, 32 blocks of width 1280, two frames averaged into one
    token.
    """

    def __init__(self, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(128, 1280, 3, padding=1)
        self.conv2 = nn.Conv1d(1280, 1280, 3, stride=2, padding=1)
        mlps = (
            nn.Sequential(nn.Linear(1280, 5120), nn.GELU(), nn.Linear(5120, 1280))
            for _ in range(32)
        )
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(Attention(1280, 20, 20, causal=False), mlp, nn.LayerNorm, 1280)
                for mlp in mlps
            )
        )
        self.norm, self.project = nn.LayerNorm(1280), nn.Linear(1280, out)

    def forward(self, mel: Tensor) -> Tensor:
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(mel))))
        x = functional.avg_pool1d(self.blocks(x.transpose(1, 2)).transpose(1, 2), 2)
        return self.project(self.norm(x.transpose(1, 2)))


class Omni(nn.Module):
    """Image and sound encoded side by side, joined with text, decoded by 28 blocks of width
    3584.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 3584
        inner = 18944
        words = 152064
        self.vision, self.audio = Vision(width), Audio(width)
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(
                    Attention(width, 28, 4, causal=True),
                    Gated(width, inner, bias=False),
                    nn.RMSNorm,
                    width,
                )
                for _ in range(28)
            )
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, pixels: Tensor, mel: Tensor, text: Tensor) -> Tensor:
        seen, heard = self.vision(pixels), self.audio(mel)
        return self.head(self.norm(self.blocks(torch.cat([seen, heard, self.words(text)], 1))))
