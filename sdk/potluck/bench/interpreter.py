"""A segment in the agent's interpreter against the same network in eager torch: training step and
forward pass.

Two networks (a CNN with batch-norm, a transformer encoder), one thread, the same batch. Each side
does the whole of a step: forward with loss, backward, AdamW. The ratios are ours to eager, the
median over rounds, the worse of the two networks; below 1 means that ours is faster.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from potluck.bench import harness
from potluck.bench.harness import Result
from potluck.bench.networks import encoder_block

SETTINGS: Mapping[str, float] = {"rows": 32, "repeats": 15, "threads": 1}
GOALS = {"ratio_to_eager_train": ("<=", 1.05), "ratio_to_eager_forward": ("<=", 1.05)}
# the other settings are torch's own defaults on both sides
OPTIMIZER = {"name": "adamw", "lr": 1e-3}


def run(settings: Mapping[str, float]) -> Result:
    """Measure both networks."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(int(settings["threads"]))
    try:
        figures: dict[str, float] = {}
        for name, make in {"cnn": _cnn, "transformer": _transformer}.items():
            figures |= _compare(name, make, settings)
    finally:
        torch.set_num_threads(before)
    worst = {
        f"ratio_to_eager_{what}": max(
            figures[f"{name}_ratio_{what}"] for name in ("cnn", "transformer")
        )
        for what in ("train", "forward")
    }
    return Result(name="interpreter", figures={**worst, **figures}, settings=settings, goals=GOALS)


def _compare(
    name: str, make: Callable[[int], tuple[Any, Any, Any]], settings: Mapping[str, float]
) -> dict[str, float]:
    import torch
    from torch import nn

    network, x, y = make(int(settings["rows"]))
    loss_of = nn.functional.cross_entropy
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    (learner, traced), (answerer, _) = (
        _segment(network, x, (y,), loss_of),
        _segment(network, x, (), None),
    )

    def eager_train() -> None:
        network.train()
        optimizer.zero_grad()
        loss_of(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def our_train() -> None:
        learner.forward((x, y, *traced.reductions((x, y))), key="0", train=True)
        learner.backward("0")
        learner.step(None, OPTIMIZER)

    def eager_forward() -> None:
        network.eval()
        with torch.no_grad():
            network(x)

    train = harness.interleaved({"ours": our_train, "eager": eager_train}, int(settings["repeats"]))
    forward = harness.interleaved(
        {"ours": lambda: answerer.forward((x,)), "eager": eager_forward}, int(settings["repeats"])
    )
    return {
        f"{name}_ratio_train": harness.ratio(train, "ours", "eager"),
        f"{name}_ratio_forward": harness.ratio(forward, "ours", "eager"),
        f"{name}_eager_train_ms": 1e3 * sorted(train["eager"])[len(train["eager"]) // 2],
        f"{name}_eager_forward_ms": 1e3 * sorted(forward["eager"])[len(forward["eager"]) // 2],
    }


def _segment(
    network: Any, x: Any, targets: tuple[Any, ...], loss: Callable[..., Any] | None
) -> Any:
    """The whole network as one segment in the agent's interpreter, with the network's own weights;
    and as traced.
    """
    from potluck.graph.trace import trace
    from potluck_agent.worker.training import TrainingSegment

    names = ("x", "y")[: 1 + len(targets)]
    traced = trace(network, (x,), input_names=names, loss=loss, targets=targets)
    segment = TrainingSegment(traced.graph, seed=None)
    for name, tensor in traced.tensors.items():
        segment.write(name, tensor.detach())
    return segment, traced


def _cnn(rows: int) -> tuple[Any, Any, Any]:
    """Some 0.3 million parameters on [rows, 3, 32, 32]."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    widths = (3, 32, 64, 128)
    blocks: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        blocks += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    network = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 16, 10))
    return network, torch.randn(rows, 3, 32, 32), torch.randint(10, (rows,))


def _transformer(rows: int) -> tuple[Any, Any, Any]:
    """Two pre-norm encoder blocks, width 128, 4 heads, on [rows, 32] tokens.

    Some 0.5 million parameters.
    """
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(100, 128), nn.Parameter(torch.randn(32, 128))
            self.blocks = nn.Sequential(encoder_block(128, 4), encoder_block(128, 4))
            self.head = nn.Linear(128, 10)

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.head(self.blocks(self.tokens(tokens) + self.places).mean(1))

    torch.manual_seed(0)
    return Encoder(), torch.randint(100, (rows, 32)), torch.randint(10, (rows,))
