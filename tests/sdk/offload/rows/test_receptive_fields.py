"""Some rows of an operator, computed from exactly the rows it claims to need, are those rows of the
whole.
"""

from collections import Counter
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.graph.families import FAMILIES, as_onnx, family

from potluck.errors import PlanError
from potluck.graph.model import Model
from potluck.offload.rows.receptive_fields import GLOBAL, localities
from potluck.offload.rows.row_rules import AccessPattern
from potluck.offload.rows.tiles import TensorSlice, piece, rows_of
from potluck_agent.worker.interpreter import Interpreter
from potluck_wire.graph import Ref, node_refs
from potluck_wire.segment import dumps, loads

ONNX = " from ONNX"
NETWORKS = [
    *FAMILIES,
    *(name + ONNX for name in ("convnext", "mobilenet", "unet", "detector", "vit")),
]
TOLERANCE = 1e-5  # relative to the largest; kernels for other sizes may sum in another order


class Untiled:
    """A network with every value that it computes."""

    def __init__(self, name: str) -> None:
        self.net, self.x = family(name.removesuffix(ONNX))
        self.model = (
            as_onnx(self.net, self.x) if name.endswith(ONNX) else Model.from_torch(self.net, self.x)
        )
        self.line = self.model.traced_line()
        self.graph = self.line.traced.graph
        self.localities = localities(self.line)
        self.state = self.model.state()
        first = self.graph.first_node
        computed = [value for value in self.line.place if value >= first]
        gives = [part for value in computed for part in self.parts(value, 0, self.count(value))]
        graph = self.piece(
            [TensorSlice(0, 0, self.count(0))], {v: (0, self.count(v)) for v in computed}, gives
        )
        self.values = {
            part.ref: y for part, y in zip(gives, self.run(graph, [self.x]), strict=True)
        }
        self.outputs = [self.values[output.ref] for output in self.graph.outputs]
        self.values[TensorSlice(0, 0, 1).ref] = self.x

    def count(self, value: int) -> int:
        return rows_of(self.line, self.localities, value)[1]

    def parts(self, value: int, start: int, stop: int) -> list[TensorSlice]:
        n_items = len(self.line.traced.types[value])
        return [
            TensorSlice(value, start, stop, item if n_items > 1 else None)
            for item in range(n_items)
        ]

    def piece(self, takes, computes, gives):
        return piece(self.line, self.localities, takes=takes, computes=computes, gives=gives)

    def run(self, graph, inputs):
        graph = loads(dumps(graph))
        state = [self.state[row.name] for row in (*graph.parameters, *graph.buffers)]
        return Interpreter(graph).run(inputs, state, train=False)

    def rows(self, part: TensorSlice) -> torch.Tensor:
        axis, _ = rows_of(self.line, self.localities, part.value)
        untiled = self.values[part.ref]
        return (
            untiled
            if axis is None
            else untiled.narrow(axis, part.start, part.stop - part.start).contiguous()
        )


untiled = cache(Untiled)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_as_one_piece_is_the_network(name):
    with torch.no_grad():
        expected = untiled(name).net(untiled(name).x)
    # a piece pads by itself: other kernels than the network's
    tolerance = 1e-4 if name.endswith(ONNX) else TOLERANCE
    for got, wanted in zip(
        untiled(name).outputs, expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        assert torch.allclose(got, wanted, rtol=0, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
@settings(max_examples=40)
@given(data=st.data())
def test_rows_computed_from_the_rows_they_need_are_those_of_the_whole(name, data):
    home = untiled(name)
    local = [i for i, row in enumerate(home.localities) if row.is_local]
    position = data.draw(st.sampled_from(local), label="node")
    node, kind = home.graph.nodes[position], home.localities[position]
    start = data.draw(st.integers(0, kind.count - 1), label="start")
    stop = data.draw(st.integers(start + 1, kind.count) | st.just(start + 1), label="stop")
    takes = []
    for ref in dict.fromkeys(node_refs(node)):
        if ref in home.values:
            axis, count = rows_of(home.line, home.localities, ref.value)
            reads = kind.reads.get(ref)
            first, last = reads.rows(start, stop) if reads and reads.axis == axis else (0, count)
            middle = data.draw(st.integers(first, last), label="seam")
            halos = [(a, b) for a, b in ((first, middle), (middle, last)) if a < b]
            takes += [TensorSlice(ref.value, a, b, ref.item) for a, b in halos]
    value = home.graph.first_node + position
    gives = home.parts(value, start, stop)
    got = home.run(
        home.piece(takes, {value: (start, stop)}, gives), [home.rows(part) for part in takes]
    )
    for part, rows in zip(gives, got, strict=True):
        wanted = home.rows(part)
        assert rows.shape == wanted.shape
        assert (rows - wanted).abs().max() <= TOLERANCE * max(1.0, float(wanted.abs().max())), (
            node.op,
            start,
            stop,
        )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "operators"),
    {
        "vgg": {
            "aten.adaptive_avg_pool2d.default",
            "aten.flatten.using_ints",
            "aten.linear.default",
        },
        "unet": set(),
        "detector": {"aten.cat.default"},
        "vit": {"aten.cat.default", "aten.select.int", "aten.linear.default"},
    }.items(),
)
def test_what_is_global(name, operators):
    home = untiled(name)
    kinds = Counter(
        n.op for n, row in zip(home.graph.nodes, home.localities, strict=True) if row.kind == GLOBAL
    )
    assert kinds.keys() == operators


def test_a_window_of_three_rows_with_padding_needs_a_row_on_either_side_but_not_beyond_the_edge():
    reads = AccessPattern(axis=2, count=8, low=-1, high=1)
    assert [reads.rows(0, 1), reads.rows(3, 5), reads.rows(7, 8), reads.rows(4, 4)] == [
        (0, 2),
        (2, 6),
        (6, 8),
        (0, 0),
    ]


def test_rows_that_are_not_there_are_named():
    home = untiled("vgg")
    value = home.graph.first_node
    with pytest.raises(
        PlanError, match=r"rows \[3, 7\) of value 0 are needed; here are \[\(0, 5\)\]"
    ):
        home.piece([TensorSlice(0, 0, 5)], {value: (4, 6)}, [TensorSlice(value, 4, 6)])


@pytest.mark.few(2)
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 2), (0, 4), (7, 9), (9, 11), (0, 11)])
def test_rows_that_are_nothing_but_padding(start, stop):
    class Padded(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.pad(x, (1, 1, 3, 4), value=2.0)

    x = torch.randn(2, 3, 4, 5)
    line = Model.from_torch(Padded(), x).traced_line()
    found = localities(line)
    value = line.traced.graph.first_node
    first, last = found[0].reads[Ref(0)].rows(start, stop)
    graph = piece(
        line,
        found,
        takes=[TensorSlice(0, first, last)],
        computes={value: (start, stop)},
        gives=[TensorSlice(value, start, stop)],
    )
    (got,) = Interpreter(graph).run([x[:, :, first:last]], [], train=False)
    assert torch.equal(got, Padded()(x)[:, :, start:stop])


@pytest.mark.long
@settings(deadline=None, max_examples=40)
@given(
    kernel=st.integers(1, 3), stride=st.integers(1, 4), dilation=st.integers(1, 2), data=st.data()
)
def test_any_rows_of_a_transposed_convolution_even_those_that_hear_nothing(
    kernel, stride, dilation, data
):
    reach = dilation * (kernel - 1)
    net = torch.nn.ConvTranspose2d(
        2,
        3,
        (kernel, 1),
        stride=(stride, 1),
        dilation=(dilation, 1),
        padding=(data.draw(st.integers(0, reach)), 0),
        output_padding=(data.draw(st.integers(0, max(stride, dilation) - 1)), 0),
    )
    x = torch.randn(2, 2, 4, 3)
    with torch.no_grad():
        expected = net(x)
    line = Model.from_torch(net, x).traced_line()
    found = localities(line)
    start = data.draw(st.integers(0, expected.shape[2] - 1))
    stop = data.draw(st.integers(start + 1, expected.shape[2]))
    value = line.traced.graph.first_node
    first, last = found[0].reads[Ref(0)].rows(start, stop)
    assert first < last
    graph = piece(
        line,
        found,
        takes=[TensorSlice(0, first, last)],
        computes={value: (start, stop)},
        gives=[TensorSlice(value, start, stop)],
    )
    state = [line.traced.tensors[row.name].detach() for row in graph.parameters]
    (got,) = Interpreter(graph).run([x[:, :, first:last]], state, train=False)
    assert torch.allclose(got, expected[:, :, start:stop], atol=1e-6)
