"""Random calls of every listed operator, legal and hostile, under two fills of the heap: no crash,
and equal results.

What an operator reads beyond its tensors, or leaves as it lay in memory, differs under another
fill.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.security.legal_calls import LEGAL, USUAL, index, positive, tensor
from tests.security.operator_calls import Call, call, graph_of

from potluck_agent.worker.interpreter import Interpreter
from potluck_wire.graph import SegmentError
from potluck_wire.operators import OPERATORS

torch = pytest.importorskip("torch")
glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the fill of the heap is glibc's to choose"
)

# every byte handed out by malloc is one of these, and every byte given back its complement
FILLS = (85, 170)
CAUSES = ("document", "bad-input", "arithmetic", "out-of-memory", "backward", "nothing")
SEED = 7


def outcomes(fill, start, stop, seed=SEED):
    """How each call ends in a process with this fill; a crash is the last line, without an end."""
    environment = os.environ | {
        "MALLOC_PERTURB_": str(fill),
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.operator_fuzz", str(seed), str(start), str(stop)],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lines = done.stdout.splitlines()
    ends = {
        int(line.split(" ")[0]): line.split(" ", 1)[1] for line in lines if not line.endswith(" ")
    }
    last = len(ends) + start
    assert done.returncode == 0, (
        f"call {last} of seed {seed} ended the process ({done.returncode}): {call(seed, last)}"
    )
    return ends


def check(start, stop, record):
    """Both fills give the same, and nothing else than results and named refusals."""
    first, second = (outcomes(fill, start, stop) for fill in FILLS)
    assert len(first) == len(second) == stop - start
    ran = 0
    for number, end in first.items():
        cause, _, text = end.partition(":")
        ran += not text
        assert not text or cause in CAUSES, f"call {number}: {end}: {call(SEED, number)}"
        assert "allocate" not in text, (
            f"call {number} asked for too much memory: {end}: {call(SEED, number)}"
        )
        if cause != "out-of-memory":  # its text says how much is left
            assert end == second[number], (
                f"call {number} depends on what lies in memory: {call(SEED, number)}"
            )
    assert ran > (stop - start) // 3  # most calls must reach the operator, or nothing is tried
    record("inputs", 2 * (stop - start))


@glibc
def test_no_call_crashes_or_reads_what_is_not_its_own(record_property):
    check(0, 2_000, record_property)


@glibc
@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_more_calls(part, record_property):
    check(10_000 * (part + 1), 10_000 * (part + 2), record_property)


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_legal_calls_of_every_operator_are_admitted(op):
    # the others of the usual ones are integers: not for all
    for legal in LEGAL[op][:1] if op in USUAL else LEGAL[op]:
        args, kwargs = (legal[:-1], legal[-1]) if isinstance(legal[-1], dict) else (legal, {})
        graph, inputs = graph_of(Call(op, args, kwargs, train=True))
        state = [torch.zeros(b.shape, dtype=getattr(torch, b.dtype)) for b in graph.buffers]
        Interpreter(graph).run(inputs, state, train=True)


X, PARTS = tensor(5, 2, 3), positive(2, 3)
STATE, WEIGHTS = (tensor(1, 2, 4),) * 2, (tensor(16, 3), tensor(16, 4), tensor(16), tensor(16))
LSTM = (True, 1, 0.0, False, False, False)
HOSTILE = {
    "lstm, narrow weights": ("lstm.input", X, STATE, (tensor(16, 1), *WEIGHTS[1:]), *LSTM),
    "lstm, short bias": ("lstm.input", X, STATE, (*WEIGHTS[:3], tensor(1)), *LSTM),
    "lstm, few weights": ("lstm.input", X, STATE, WEIGHTS[:2], *LSTM),
    "lstm, many layers": ("lstm.input", X, STATE, WEIGHTS, True, 1000, 0.0, False, False, False),
    "lstm, states of more rows": ("lstm.input", X, (tensor(1, 9, 4),) * 2, WEIGHTS, *LSTM),
    "lstm, one state": ("lstm.input", X, STATE[:1], WEIGHTS, *LSTM),
    "lstm, states of no dimension": ("lstm.input", X, (tensor(), tensor()), WEIGHTS, *LSTM),
    "lstm, integers": ("lstm.input", index(5, 2, 3), STATE, WEIGHTS, *LSTM),
    "gru, narrow weights": (
        "gru.input",
        X,
        STATE[0],
        (tensor(12, 1), tensor(12, 4), tensor(12), tensor(12)),
        *LSTM,
    ),
    "gru, a state of more rows": ("gru.input", X, tensor(1, 9, 4), WEIGHTS, *LSTM),
    "target of one": ("binary_cross_entropy.default", PARTS, positive(1)),
    "target of less": ("binary_cross_entropy.default", PARTS, positive(3)),
    "target of more": ("binary_cross_entropy.default", PARTS, positive(64, 3)),
    "weight of one": ("binary_cross_entropy.default", PARTS, PARTS, positive(1)),
    "weight of another type": ("binary_cross_entropy.default", PARTS, PARTS, index(2, 3)),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("train", [False, True])
def test_sizes_that_torch_does_not_check_are_refused_by_rule(hostile, train):
    op, *args = hostile
    graph, inputs = graph_of(Call(f"aten.{op}", tuple(args), {}, train))
    with pytest.raises(SegmentError) as caught:
        Interpreter(graph).run(inputs, [], train=train)
    assert caught.value.cause == "bad-input"
    assert op in caught.value.text
