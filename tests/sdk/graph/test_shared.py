"""A request shared by two sides gives what one machine gives: every family, every table entry, any division of rows."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.graph.families import FAMILIES, family
from torch import nn

from potluck.errors import ModelError
from potluck.graph.model import Model
from potluck.graph.shared import DEVICE, HELPER, Shareable, Shared, SharedPiece, lower
from potluck.plan.sharing import Division, Shares, Sharing
from potluck.plan.split import share
from potluck_agent.worker.interpreter import Interpreter
from potluck_wire.segment import dumps, loads

TOLERANCE = 1e-5  # relative to the largest; kernels for other sizes may sum in another order


class Case:
    """A network, its request and its answer on one machine."""

    def __init__(self, name: str) -> None:
        self.net, self.x = family(name)
        self.model = Model.from_torch(self.net, self.x)
        self.shareable = Shareable(self.model.traced_line())
        with torch.no_grad():
            answer = self.net(self.x)
        self.answer = answer if isinstance(answer, tuple) else (answer,)
        values = self.shareable.values
        operators = self.shareable.operators(dict.fromkeys(values, 1e-3), dict.fromkeys(values, 2e-4))
        self.sharing = Sharing(operators=operators, bytes_per_s=1e6, latency_s=1e-3)

    def run(self, shared: Shared) -> list[torch.Tensor]:
        """Both sides' pieces, in the worker's interpreter, each with nothing but its own parts and those received."""
        state = self.model.state()
        have = {DEVICE: {self.shareable.input_part: self.x}, HELPER: {}}
        for step in shared.steps:
            if isinstance(step, SharedPiece):
                graph = loads(dumps(step.graph))
                states = [state[row.name] for row in (*graph.parameters, *graph.buffers)]
                inputs = [have[step.side][part] for part in step.takes]
                have[step.side].update(
                    zip(step.gives, Interpreter(graph).run(inputs, states, train=False), strict=True)
                )
            else:
                side, part = step
                whole = have[side].get(self.shareable.input_part)
                sent = have[side].get(part)
                if sent is None and whole is not None and part.value == 0:
                    sent = whole.narrow(2, part.start, part.stop - part.start)
                have[HELPER if side == DEVICE else DEVICE][part] = sent
        return [have[DEVICE][part] for part in shared.results]

    def check(self, divisions: list[Division] | tuple[Division, ...]) -> None:
        for got, wanted in zip(self.run(lower(self.shareable, divisions)), self.answer, strict=True):
            assert got.shape == wanted.shape
            assert (got - wanted).abs().max() <= TOLERANCE * max(1.0, float(wanted.abs().max()))


case = cache(Case)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_answer_is_that_of_one_machine_at_every_bandwidth(name):
    home = case(name)
    for bytes_per_s in (0.0, 1e4, 1e5, 3e5, 1e6, 3e6, 1e7, 1e9):
        home.check(share(replace(home.sharing, bytes_per_s=bytes_per_s)).divisions)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25)
@given(data=st.data())
def test_the_answer_is_that_of_one_machine_for_any_division(name, data):
    home = case(name)
    first, *inner, last = Shares(home.sharing).joints
    divisions = [Division(first, home.sharing.operators[0].count, home.sharing.operators[0].count)]
    for joint in inner:
        if data.draw(st.booleans(), label=f"joint {joint}"):
            count = home.sharing.operators[joint].count
            cut = data.draw(st.sampled_from((0, 1, count - 1, count)) | st.integers(0, count), label="cut")
            both = data.draw(st.integers(0, 9), label="both") == 0
            divisions.append(Division(joint, count, 0) if both else Division(joint, cut, cut))
    home.check([*divisions, Division(last, 1, 1)])


def test_a_model_of_several_inputs_is_refused():
    class Sum(nn.Module):
        def forward(self, x, y):
            return x + y

    model = Model.from_torch(Sum(), (torch.zeros(2, 3), torch.zeros(2, 3)))
    with pytest.raises(ModelError, match="2 inputs cannot be shared"):
        Shareable(model.traced_line())


def test_a_model_without_rows_says_so():
    model = Model.from_torch(nn.Linear(3, 2), torch.zeros(2, 3))
    assert not Shareable(model.traced_line()).has_rows
