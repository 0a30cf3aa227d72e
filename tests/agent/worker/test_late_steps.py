"""A step of an optimizer among forwards and backwards of the next one: each backward ends with the
weights of its forward, and gradients are those of one step.
"""

import pytest
import torch
from tests.agent.worker.test_memory import ADAMW, NETWORKS, graph_of
from tests.agent.worker.test_recomputation import CASES, bits, state

from potluck_agent.worker.optimizers import PIECE_NUMBERS, ParameterOptimizer
from potluck_agent.worker.tasks import StepOptions
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import SegmentError
from potluck_wire.optimizers import KINDS

SIZES = (3, 5)  # micro-batches of a step
N_STEPS = 5
LATE = StepOptions(late=True)


class Stepping:
    """A segment, and the gradients of it that are pending."""

    def __init__(self, graph, optimizer=ADAMW, *, recompute=False):
        torch.manual_seed(3)
        self.made = TrainingSegment(graph, 7)
        self.optimizer, self.recompute = optimizer, recompute
        self.pending, self.seen = [], []

    def forward(self, step, m):
        rows = SIZES[m]
        (first, *_) = self.made.forward(
            self.made.example(rows),
            key=f"{step}.{m}",
            train=True,
            rows=(0, rows, rows),
            step=step,
            micro_batch=m,
            recompute=self.recompute,
        )
        self.seen.append(first.clone())

    def backward(self, step, m):
        scale = SIZES[m] / sum(SIZES)
        self.seen += [g.clone() for g in self.made.backward(f"{step}.{m}", scale=scale)]
        if m == len(SIZES) - 1:
            self.pending.append(self.made.gradients(taken=True))

    def update(self):
        self.made.step(self.pending.pop(0), self.optimizer, LATE)


def apart(graph, **more):
    """Each step ends before the next one begins; its gradients wait."""
    one = Stepping(graph, **more)
    for step in range(N_STEPS):
        if step >= 2:
            one.update()
        for m in range(len(SIZES)):
            one.forward(step, m)
        for m in range(len(SIZES)):
            one.backward(step, m)
    one.update()
    one.update()
    return one


def among(graph, **more):
    """A step's forwards are done before the backwards of the step before."""
    one = Stepping(graph, **more)
    for step in range(N_STEPS):
        for m in range(len(SIZES)):
            if step and m == 1:  # some of its backwards come before, and some after the update
                one.backward(step - 1, 0)
            if step >= 2 and m == 0:
                one.update()
            one.forward(step, m)
        if step:
            one.backward(step - 1, 1)
    for m in range(len(SIZES)):
        one.backward(N_STEPS - 1, m)
    one.update()
    one.update()
    return one


def in_order(one):
    """What was seen, whenever."""
    return sorted(map(bits, one.seen)), {k: bits(x.double()) for k, x in state(one.made).items()}


@pytest.mark.few(4)
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("name", CASES)
def test_among_others_is_learned_what_is_learned_apart(name, recompute):
    graph = graph_of(CASES[name])
    assert in_order(apart(graph)) == in_order(among(graph, recompute=recompute))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [*KINDS, "adamw in halves"])
def test_every_optimizer_keeps_its_state(name):
    graph, optimizer = graph_of(NETWORKS["cnn"]), {"name": name.partition(" ")[0]}
    if name.endswith("halves"):
        optimizer |= {"bfloat16_moments": True, "beta2": 0.99}
    assert in_order(apart(graph, optimizer=optimizer)) == in_order(
        among(graph, optimizer=optimizer)
    )


def test_gradients_of_large_weights_are_handed_on_in_pieces():
    """State goes with the pieces of a weight, not with its name."""
    torch.manual_seed(0)
    weights = [torch.randn(64, PIECE_NUMBERS // 64 + 3) for _ in range(2)]
    own, other = [{"w": torch.nn.Parameter(w.clone())} for w in (weights[0], weights[0])]
    one, two = ParameterOptimizer(own), ParameterOptimizer(other)
    for _ in range(4):
        gradient = torch.randn_like(weights[0])
        moved = {"w": torch.nn.Parameter(one.parameters["w"].detach().clone())}
        one.go_over(moved)
        for each in (one, two):
            each.parameters["w"].grad = gradient.clone()
            each.step(ADAMW)
    assert one.names() == two.names()
    for name in one.names():
        assert torch.equal(one.read(name), two.read(name))
    assert torch.equal(one.parameters["w"], two.parameters["w"])


def test_others_see_the_weights_where_they_were_as_soon_as_nothing_is_outstanding():
    graph = graph_of(NETWORKS["cnn"])
    one = Stepping(graph)
    before = {name: one.made.read(name) for name in one.made.names()}
    for step in range(2):
        one.forward(step, 0)
    one.backward(0, 0)
    one.pending.append(one.made.gradients(taken=True))
    one.update()
    name = graph.parameters[0].name
    assert one.made.read(name).data_ptr() != before[name].data_ptr()
    one.backward(1, 0)
    one.pending.append(one.made.gradients(taken=True))
    one.update()
    for name, tensor in before.items():
        assert torch.equal(one.made.read(name), tensor)
        assert one.made.read(name).data_ptr() == tensor.data_ptr()


def test_a_backward_from_before_the_last_step_but_one_is_refused():
    one = Stepping(graph_of(NETWORKS["cnn"]))
    one.forward(0, 0)
    for step in (1, 2):
        one.forward(step, 1)
        one.backward(step, 1)
        if step == 1:
            one.update()
    with pytest.raises(SegmentError, match="before the last step but one"):
        one.update()


def test_backwards_in_two_parts_and_late_steps_do_not_meet():
    one = Stepping(graph_of(NETWORKS["cnn"]))
    one.forward(0, 1)
    one.backward(0, 1)
    rows = SIZES[0]
    one.made.forward(one.made.example(rows), key="k", train=True, rows=(0, rows, rows), split=True)
    with pytest.raises(SegmentError, match="backwards in two parts"):
        one.update()
    one.made.backward_input("k")
    with pytest.raises(SegmentError, match="backwards in two parts"):
        one.made.step(one.made.gradients(), ADAMW, LATE)


def test_what_ended_in_the_middle_does_not_hinder_the_next_one():
    one = Stepping(graph_of(NETWORKS["cnn"]))
    one.forward(0, 0)
    one.forward(1, 1)
    one.backward(1, 1)
    one.update()
    one.made.forget("")
    for step in (2, 3, 4):
        one.forward(step, 1)
        one.backward(step, 1)
        one.update()
