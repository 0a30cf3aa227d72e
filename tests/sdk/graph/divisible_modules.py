"""Random networks that can be divided by tensor, and a divided one run piece by piece."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from potluck.graph.tensor.model import DividedModel
from potluck.records import Plan, Stage
from potluck.schedule.stage_graph import wire

from .test_equality import loaded


class Shift(nn.Module):
    """Adds a weight to the input, whose gradient is therefore the sum of the input's."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


class Llama(nn.Module):
    """RMS norm, rotary attention by groups of heads, and a gated product."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, how: str) -> None:
        super().__init__()
        self.heads = heads
        self.groups = groups
        self.size = width // heads
        self.how = how
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.register_buffer("cos", torch.randn(1, 1, 64, self.size))
        self.register_buffer("sin", torch.randn(1, 1, 64, self.size))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        n = x.shape[2]
        return x * self.cos[:, :, :n] + torch.cat((-b, a), -1) * self.sin[:, :, :n]

    def attended(self, n: torch.Tensor) -> torch.Tensor:
        rows, length, width = n.shape
        q, k, v = (
            f(n).view(rows, length, heads, self.size).transpose(1, 2)
            for f, heads in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups))
        )
        q = self.turned(q)
        k = self.turned(k)
        times = self.heads // self.groups
        if self.how == "repeated":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        elif self.how == "expanded":
            shape = (rows, self.groups, times, length, self.size)
            k, v = (
                t[:, :, None].expand(shape).reshape(rows, self.heads, length, self.size)
                for t in (k, v)
            )
        grouped = self.how == "grouped"
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.o(found.transpose(1, 2).reshape(rows, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attended(self.first(x))
        n = self.second(x)
        return x + self.down(functional.silu(self.gate(n)) * self.up(n))


class Gpt(nn.Module):
    """Layer norm, queries, keys and values of one product, written-out attention, and a GELU."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            t.view(rows, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.first(x)).split(width, 2)
        )
        weights = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.o((weights @ v).transpose(1, 2).contiguous().view(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """Blocks between a table of embeddings and an output layer, perhaps of the same weight."""

    def __init__(self, words: int, width: int, blocks: Sequence[nn.Module], tied: bool) -> None:
        super().__init__()
        self.table, self.blocks = nn.Embedding(words, width), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def word_loss(answer: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean over all words."""
    return functional.cross_entropy(answer.flatten(0, 1), target.flatten())


@dataclass(frozen=True)
class Case:
    """A network, inputs, targets and the loss of it."""

    net: nn.Module
    x: torch.Tensor
    y: torch.Tensor
    loss: Callable[..., torch.Tensor]


def mlp(rng: random.Random, n: int) -> Case:
    """Two or three pairs of products."""
    width, layers = rng.randint(3, 12), list[nn.Module]()
    layers.append(Shift(width))
    for _ in range(rng.randint(1, 3)):
        hidden = rng.randint(4, 10) * n
        layers += [nn.Linear(width, hidden, bias=rng.random() < 0.5)]
        layers += [rng.choice([nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU])()]
        layers += [nn.Linear(hidden, width, bias=rng.random() < 0.5), nn.Tanh()]
    rows = rng.randint(2, 5)
    return Case(
        nn.Sequential(*layers),
        torch.randn(rows, width),
        torch.randn(rows, width),
        functional.mse_loss,
    )


def language(rng: random.Random, n: int) -> Case:
    """Blocks of Llama's or GPT's kind, by heads in groups or none."""
    groups = n * rng.choice([1, 2])
    times = rng.choice([1, 2, 3])
    size = 2 * rng.randint(1, 3)
    heads = groups * times
    width = heads * size
    hidden = n * rng.randint(3, 9)
    words = n * rng.randint(4, 8)
    how = "plain" if times == 1 else rng.choice(["repeated", "expanded", "grouped"])
    blocks = [
        Llama(width, heads, groups, hidden, how)
        if rng.random() < 0.6
        else Gpt(width, heads, hidden)
        for _ in range(rng.randint(1, 2))
    ]
    net = Language(words, width, blocks, tied=rng.random() < 0.4)
    shape = rng.randint(2, 4), rng.randint(2, 6)
    return Case(net, torch.randint(0, words, shape), torch.randint(0, words, shape), word_loss)


def encoder(rng: random.Random, n: int) -> Case:
    """torch's own encoder layer."""
    heads, size = n * rng.choice([1, 2]), rng.randint(2, 4)
    width, first = heads * size, rng.random() < 0.5
    layer = nn.TransformerEncoderLayer(
        width, heads, n * rng.randint(3, 6), 0.0, batch_first=True, norm_first=first
    )
    rows, length = rng.randint(2, 4), rng.randint(2, 5)
    shape = rows, length, width
    return Case(
        nn.Sequential(Shift(length, width), layer),
        torch.randn(shape),
        torch.randn(shape),
        functional.mse_loss,
    )


def convolutions(rng: random.Random, n: int) -> Case:
    """Convolutions, of each channel by itself too, normalised and pooled; then a head."""
    a, b, c = (n * rng.randint(2, 4) for _ in range(3))
    middle: list[nn.Module] = [nn.Conv2d(a, a, 3, padding=1, groups=a)] * (rng.random() < 0.5)
    net = nn.Sequential(
        Shift(3, 8, 8),
        *(nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(), *middle),
        *(nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(b, c, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * c, 5)),
    )
    rows = rng.randint(2, 4)
    return Case(
        net, torch.randn(rows, 3, 8, 8), torch.randint(0, 5, (rows,)), functional.cross_entropy
    )


class Residual(nn.Module):
    """Two convolutions beside what they are added to, which may need one, too."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.beside = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.second(functional.relu(self.norms[0](self.first(x))))
        return functional.relu(self.norms[1](made) + self.beside(x))


def residual(rng: random.Random, n: int) -> Case:
    """Blocks of a ResNet; normalised sums keep statistics, which one device alone can."""
    a, b = (n * rng.randint(2, 3) for _ in range(2))
    net = nn.Sequential(
        *(Shift(3, 8, 8), nn.Conv2d(3, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU()),
        *(nn.MaxPool2d(2), Residual(a, a), Residual(a, b)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 5)),
    )
    rows = rng.randint(2, 4)
    x, y = torch.randn(rows, 3, 8, 8), torch.randint(0, 5, (rows,))
    return Case(net, x, y, functional.cross_entropy)


KINDS = {
    "residual": residual,
    "mlp": mlp,
    "language": language,
    "encoder": encoder,
    "convolutions": convolutions,
}


def gradients_in_pieces(
    model: DividedModel, case: Case
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a step in pieces, each layer a segment, and the joined gradients."""
    n = len(model.layers(True))
    rows = len(case.x)
    stages = tuple(Stage(start=i, stop=i + 1, devices=("d",), shares=(rows,)) for i in range(n))
    cuts = [model.segment(i, i + 1, train=True) for i in range(n)]
    records = [record for record, _ in cuts]
    plan = Plan(planner="p", model="m", stages=stages, micro_batch=rows)
    wiring = wire(plan, records, training=True)
    state = model.state()
    segments = [loaded(graph, state) for _, graph in cuts]
    fed = model.fed(case.x, case.y)
    made: list[dict[str, torch.Tensor]] = []
    for p, record in enumerate(records):
        taken = [made[q][t.name] for t, q in zip(record.inputs, wiring.suppliers[p], strict=True)]
        given = [*(fed[t.name] for t in record.feeds), *taken]
        outputs = segments[p].forward(given, key="k", train=True)
        made.append(dict(zip((t.name for t in record.outputs), outputs, strict=True)))
    back: dict[tuple[int, str], list[torch.Tensor]] = {}
    for p in reversed(range(n)):
        if not wiring.learns[p]:
            continue
        given = [sum(back[p, t.name]) for t in records[p].outputs if wiring.returning(p, t)]
        gradients = iter(segments[p].backward("k", given))
        for tensor, q in zip(records[p].inputs, wiring.suppliers[p], strict=True):
            if tensor.gradient:
                back.setdefault((q, tensor.name), []).append(next(gradients))
    found: dict[str, torch.Tensor] = {}
    trained = {parameter.name for parameter in model.trained}
    for segment in segments:
        segment.step(None, {"name": "sgd", "lr": 1.0})
        for name in trained.intersection(segment.names()):
            mine = state[name] - segment.read(name)
            found[name] = found[name] + mine if name in found else mine
    return made[-1]["loss"], model.joined(found)


def answer_in_pieces(model: DividedModel, x: torch.Tensor) -> torch.Tensor:
    """What it answers, each layer a segment."""
    values, state = dict[str, torch.Tensor](), model.state()
    (port,) = model.inputs()
    values[port.name] = x
    for i in range(len(model.layers())):
        record, graph = model.segment(i, i + 1)
        given = [values[t.name] for t in (*record.feeds, *record.inputs)]
        outputs = loaded(graph, state).forward(given, key="k", train=False)
        values |= dict(zip((t.name for t in record.outputs), outputs, strict=True))
    return outputs[0]
