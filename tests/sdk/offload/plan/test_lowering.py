"""A request that sides share gives what one machine gives: every family, every table entry, any
division of rows.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.graph.families import FAMILIES, TORCH_ALONE, family
from torch import nn
from torch.nn import functional

from potluck.errors import ModelError
from potluck.graph.model import Model
from potluck.offload.plan import baselines
from potluck.offload.plan.lowering import DEVICE, LoweredRequest, Shareable, SharedPiece, lower
from potluck.offload.plan.problem import NONE, Division, OffloadProblem
from potluck.offload.plan.search import PartitionPoint, divided
from potluck.offload.plan.split import Splitter
from potluck.offload.rows.operator_times import OperatorTimes
from potluck_agent.worker.interpreter import Interpreter
from potluck_wire.segment import dumps, loads

ALL = (*FAMILIES, *TORCH_ALONE)
TOLERANCE = 1e-5  # relative to the largest; kernels for other sizes may sum in another order


class Case:
    """A network, its request and its answer on one machine."""

    def __init__(self, name: str, made: tuple[nn.Module, torch.Tensor] | None = None) -> None:
        self.net, self.x = made or family(name)
        self.model = Model.from_torch(self.net, self.x)
        self.shareable = Shareable(self.model.traced_line())
        with torch.no_grad():
            answer = self.net(self.x)
        self.answer = answer if isinstance(answer, tuple) else (answer,)
        values = self.shareable.values
        operators = self.shareable.operators(
            [OperatorTimes(seconds=dict.fromkeys(values, s)) for s in (1e-3, 2e-4)]
        )
        self.splitter = Splitter(
            OffloadProblem(operators=operators, bytes_per_s=1e6, latency_s=1e-3)
        )

    def run(self, shared: LoweredRequest) -> list[torch.Tensor]:
        """Both sides' pieces, in the worker's interpreter, each with nothing but its own parts and
        those received.
        """
        state = self.model.state()
        have = defaultdict(dict, {DEVICE: {self.shareable.input_part: self.x}})
        for step in shared.steps:
            if isinstance(step, SharedPiece):
                graph = loads(dumps(step.graph))
                states = [state[row.name] for row in (*graph.parameters, *graph.buffers)]
                inputs = [have[step.side][part] for part in step.takes]
                have[step.side].update(
                    zip(
                        step.gives, Interpreter(graph).run(inputs, states, train=False), strict=True
                    )
                )
            else:
                part, value = step.part, have[step.side].get(self.shareable.input_part)
                sent = have[step.side].get(part)
                if sent is None and part.value == 0:
                    axis = self.shareable.rows_of(0)[0] or 0
                    sent = value.narrow(axis, part.start, part.stop - part.start)
                have[step.to][part] = sent
        return [have[DEVICE][part] for part in shared.results]

    def check(self, divisions: Sequence[Division], tiles: int) -> None:
        for got, wanted in zip(
            self.run(lower(self.shareable, divisions, tiles)), self.answer, strict=True
        ):
            assert got.shape == wanted.shape
            assert (got - wanted).abs().max() <= TOLERANCE * max(1.0, float(wanted.abs().max()))


case = cache(Case)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ALL)
def test_the_answer_is_that_of_one_machine_at_every_bandwidth(name):
    home = case(name)
    rates = (0.0, 1e5, 1e6, 3e6, 1e7, 1e9)
    for divisions, tiles in dict.fromkeys(
        (s.divisions, s.tiles) for s in map(home.splitter.share, rates)
    ):
        home.check(divisions, tiles)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=10)
@given(data=st.data())
def test_the_answer_is_that_of_one_machine_whatever_changes_hands_wherever(name, data):
    home, shares = case(name), case(name).splitter.shares
    places = data.draw(
        st.lists(st.integers(1, shares.last - 1), max_size=4, unique=True).map(sorted),
        label="places",
    )
    way = [PartitionPoint(0, 1.0)]
    for place in places:
        share = data.draw(
            st.sampled_from((0.0, 1.0)) | st.floats(0, 1), label=f"share behind {place}"
        )
        way.append(PartitionPoint(place, share, data.draw(st.integers(0, 9), label="both") == 0))
    replicate = data.draw(st.booleans(), label="replicate")
    home.check(
        divided(shares, (*way, PartitionPoint(shares.last, 1.0)), replicate=replicate),
        data.draw(st.integers(1, 9)),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=5)
@given(data=st.data())
def test_the_answer_is_that_of_one_machine_for_any_rows_of_any_operator(name, data):
    home, shares = case(name), case(name).splitter.shares
    divisions = [((0, shares.operators[0].count), NONE)]
    for operator in shares.operators[1:-1]:
        cut = data.draw(
            st.sampled_from((0, 1, operator.count - 1, operator.count))
            | st.integers(0, operator.count)
        )
        if not operator.divisible:
            cut = operator.count if cut else 0
        divisions.append(((0, cut), (cut, operator.count)))
    home.check([*divisions, ((0, 1), NONE)], data.draw(st.integers(1, 4)))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ALL)
@settings(max_examples=3)
@given(data=st.data())
def test_the_answer_is_that_of_one_machine_for_any_rows_of_any_operator_on_three_sides(name, data):
    home, shares = case(name), case(name).splitter.shares
    divisions = [((0, shares.operators[0].count), NONE, NONE)]
    for operator in shares.operators[1:-1]:
        size = operator.count if operator.divisible else 1
        bounds = sorted(
            data.draw(st.integers(0, size)) * (operator.count // size) for _ in range(2)
        )
        divisions.append(tuple(pairwise((0, *bounds, operator.count))))
    home.check([*divisions, ((0, 1), NONE, NONE)], data.draw(st.integers(1, 4)))


POOLS = {
    "max_pool2d(2)": lambda h: functional.max_pool2d(h, 2),
    "max_pool2d((3, 2))": lambda h: functional.max_pool2d(h, (3, 2)),
    "max_pool2d(3, 2)": lambda h: functional.max_pool2d(h, 3, 2),
    "max_pool2d(2, ceil)": lambda h: functional.max_pool2d(h, 2, ceil_mode=True),
    "avg_pool2d(2)": lambda h: functional.avg_pool2d(h, 2),
    "avg_pool2d(3, padding=1)": lambda h: functional.avg_pool2d(h, 3, padding=1),
    "avg_pool2d(3, ceil)": lambda h: functional.avg_pool2d(h, 3, ceil_mode=True),
    "lp_pool2d(2, 2)": lambda h: functional.lp_pool2d(h, 2, 2),
}


class Pooled(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.pool = pool

    def forward(self, x):
        return self.after(self.pool(self.before(x)))


@pytest.mark.long
@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_steps_by_its_window_unless_it_is_told_otherwise(pool):
    torch.manual_seed(0)
    home = Case(pool, (Pooled(POOLS[pool]).eval(), torch.randn(2, 3, 13, 9)))
    operators = home.splitter.shares.operators
    for cut in range(max(operator.count for operator in operators[1:-1])):
        cuts = [min(cut, op.count) if op.divisible else op.count for op in operators[1:-1]]
        rows = [((0, n), (n, op.count)) for n, op in zip(cuts, operators[1:-1], strict=True)]
        home.check([((0, operators[0].count), NONE), *rows, ((0, 1), NONE)], 2)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ALL)
def test_what_others_do_runs_on_the_same_pieces(name):
    home, shares = case(name), case(name).splitter.shares
    home.check(baselines.all_on_helper(shares), 1)
    home.check(baselines.least_cut(shares, 1e6), 1)
    home.check(baselines.greedy_tiling(shares, 1e7), 4)


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
