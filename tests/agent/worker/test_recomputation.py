"""A segment that recomputes keeps less and computes the same, to the bit."""

from itertools import product

import pytest
import torch
from tests.agent.worker.test_memory import ADAMW, NETWORKS, ROWS, graph_of
from tests.sdk.graph.models import Case
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from potluck_agent.worker.training import TrainingSegment

STEPS = 2
SIZES = (3, 5)  # micro-batches, both under way at once


class Normed(nn.Module):
    """Batch norm moves its statistics in every forward, and dropout draws masks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


NORMED = Case(
    Normed, nn.CrossEntropyLoss(), lambda n: torch.randn(n, 6), lambda n: torch.randint(3, (n,))
)
CASES = NETWORKS | {"normed": NORMED}


def bits(tensor):
    """Two that are alike are alike in these, not a number or not."""
    return tensor.detach().numpy().tobytes()


def state(segment):
    """All that a segment has learned."""
    return {name: segment.read(name).clone() for name in segment.names()}


def trained(graph, recomputing, seed=7):
    """Losses, gradients and state after steps whose micro-batches overlap; `recomputing`: which of
    them.
    """
    torch.manual_seed(3)
    made, seen = TrainingSegment(graph, seed), []
    for step in range(STEPS):
        for m, rows in enumerate(SIZES):
            inputs = made.example(rows)
            outputs = made.forward(
                inputs,
                key=f"{m}",
                train=True,
                rows=(0, rows, rows),
                step=step,
                micro_batch=m,
                recompute=recomputing[m],
            )
            seen.append(outputs[0].clone())
        for m, rows in enumerate(SIZES):
            seen += [g.clone() for g in made.backward(f"{m}", scale=rows / sum(SIZES))]
        seen.append(made.gradients())
        made.step(None, ADAMW)
    return seen, state(made), torch.rand(3)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [7, None], ids=["masks", "generator"])
@pytest.mark.parametrize("name", CASES)
def test_recomputing_changes_no_bit_of_what_is_learned(name, seed):
    graph = graph_of(CASES[name])
    seen, learned, drawn = trained(graph, (False, False), seed)
    for recomputing in [*product((False, True), repeat=2)][1:]:
        again, other, then = trained(graph, recomputing, seed)
        assert [bits(x) for x in seen] == [bits(x) for x in again]
        assert {k: bits(x) for k, x in learned.items()} == {k: bits(x) for k, x in other.items()}
        assert torch.equal(drawn, then)  # the generator of random numbers is where it was


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_forward_that_is_to_be_computed_again_keeps_its_inputs_alone(name):
    made = TrainingSegment(graph_of(NETWORKS[name]))
    inputs = made.example(ROWS)
    seen = []

    def note(position, value):
        if isinstance(value, torch.Tensor):
            seen.append(StorageWeakRef(value.untyped_storage()))

    def alive():
        """The values of a forward that are still there, beside its inputs and the state."""
        known = [*inputs, *(made.read(state) for state in made.names())]
        own = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in known}
        return {ref.cdata for ref in seen if not ref.expired()} - own

    made.forward(inputs, key="k", train=True, rows=(0, ROWS, ROWS), recompute=True, observe=note)
    assert not alive()
    made.backward("k")
    seen.clear()
    made.forward(inputs, key="k", train=True, rows=(0, ROWS, ROWS), observe=note)
    assert alive()
