"""The walk over a step, told to a sink that does with rows what devices would do with tensors.

A value is the list of its rows; a gradient carries a factor per way that it came back.
"""

import random
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from potluck.schedule import policies
from potluck.schedule.micro_batches import MicroBatch
from potluck.schedule.step import StageOutput, StepSpec, walk
from potluck.schedule.validate import check

DIAMOND = ((), (0,), (0,), (0, 1, 2))  # a stem, two branches of it, and a head that reads all three
CHAIN = ((), (0,), (1,))


class Rows:
    """Carries a step out, and checks what each action gets."""

    def __init__(self, spec):
        self.spec, self.sent = spec, 0
        self.forwards = {}
        self.answered = {}
        self.told = {}
        self.ways = {}
        self.updates = []
        self.scaled = []

    def rows(self, action, index):
        shares = self.spec.division[action.stage][action.micro_batch].shares
        first = sum(shares[:index])
        return list(range(first, first + shares[index]))

    def feed(self, action, index, priority):
        return [] if self.spec.inputs[action.stage] else [self.rows(action, index)]

    def forward(self, action, index, inputs, priority):
        rows = self.rows(action, index)
        assert inputs == [rows] * max(1, len(self.spec.inputs[action.stage]))
        self.forwards.setdefault((action.stage, action.micro_batch), []).extend(rows)
        return [rows for _ in self.spec.outputs[action.stage]]

    def backward(self, action, index, gradients, priority):
        rows = self.rows(action, index)
        ways = sum((len(gradient) // len(rows) for gradient in gradients), 0) or 1
        assert gradients == [rows * (len(g) // len(rows)) for g in gradients]
        self.ways.setdefault(action.stage, set()).add(ways)
        return [rows for _ in self.spec.inputs[action.stage]]

    def cut(self, rows, value, priority):
        first = self.rows(rows.source, rows.left)[0]
        return value[rows.start - first : rows.stop - first]

    def send(self, rows, value, priority):
        self.sent += 1
        assert value == list(range(rows.start, rows.stop))
        return value

    def join(self, action, index, tensor, source, pieces, priority):
        assert len(pieces) > 1
        return [row for piece in pieces for row in piece]

    def add(self, action, index, tensor, parts, priority):
        assert all(part == parts[0] for part in parts)
        return [row for part in parts for row in part]

    def answer(self, action, index, outputs, priority):
        self.answered.setdefault(action.micro_batch, []).extend(outputs[0])

    def send_losses(self, index, losses, priority):
        self.told[index] = losses

    def vector(self, p, index, priority):
        return {(p, index): 1}

    def ring(self, p):
        return Vectors()

    def summed(self, p, vector, priority):
        holds = any(p in holders for holders in self.spec.shared)
        assert vector == ({"shared": p} if holds else self.summed_of(p))

    def shared_part(self, k, p, index, vector, priority):
        assert vector == self.summed_of(p)
        return {p: self.spec.devices[p][index]}

    def send_shared_part(self, k, p, q, index, part, priority):
        device = self.spec.devices[q][index]
        assert part == {p: self.spec.devices[p][0]} != {p: device}
        return {p: device}

    def shared_sum(self, k, q, index, parts, priority):
        device = self.spec.devices[q][index]
        assert parts == [{p: device} for p in reversed(self.spec.shared[k])]
        return k

    def with_shared(self, q, index, vector, sums, priority):
        assert vector == self.summed_of(q)
        assert sums == {k: k for k, holders in enumerate(self.spec.shared) if q in holders}
        return {"shared": q}

    def summed_of(self, p):
        return {(p, i): 1 for i in range(len(self.spec.devices[p]))}

    def norms(self, p, vectors, priority):
        holds = any(p in holders for holders in self.spec.shared)
        assert len(vectors) == (len(self.spec.devices[p]) > 1 or holds)
        return self.spec.devices[p][0], {p}

    def send_norms(self, p, judge, norms, priority):
        place, stages = norms
        assert place == self.spec.devices[p][0] != self.spec.devices[judge][0]
        return self.spec.devices[judge][0], stages

    def limit(self, judge, stages, norms, priority):
        place = self.spec.devices[judge][0]
        assert [found for _, found in norms] == [{p} for p in stages]
        assert {holder for holder, _ in norms} == {place}
        return place

    def send_scale(self, judge, p, index, scale, priority):
        assert scale == self.spec.devices[judge][0]
        self.scaled.append(self.spec.devices[p][index])
        return self.scaled[-1]

    def update(self, p, index, vectors, scales, priority):
        assert scales == ([self.spec.devices[p][index]] if self.spec.limited else [])
        self.updates.append((p, index))
        if any(p in holders for holders in self.spec.shared):
            assert vectors == [{"shared": p}]
        else:
            assert vectors == ([self.summed_of(p)] if len(self.spec.devices[p]) > 1 else [])


class Vectors:
    """Pieces of vectors as how often each replica's is in them."""

    def piece(self, i, k, vector, priority):
        return vector

    def send(self, i, k, value, ring_step, priority):
        return value

    def add(self, i, k, own, arrived, ring_step, priority):
        assert not own.keys() & arrived.keys()
        return own | arrived

    def join(self, i, pieces, priority):
        assert all(piece == pieces[0] for piece in pieces)
        return dict(sorted(pieces[0].items()))


def some_holders(rng, n_stages):
    """Up to two parameters that two stages hold, or more."""
    return [
        tuple(sorted(rng.sample(range(n_stages), rng.randint(2, n_stages))))
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]


def random_spec(rng, before, *, training):
    n_stages, n_micro_batches = len(before), rng.randint(1, 4)
    devices = [rng.sample("abcd", rng.randint(1, 3)) for _ in before]

    def split(n_rows, n):
        ends = sorted(rng.randint(0, n_rows) for _ in range(n - 1))
        return tuple(stop - start for start, stop in pairwise([0, *ends, n_rows]))

    stops = [*accumulate(rng.randint(1, 7) for _ in range(n_micro_batches))]
    division = [
        [MicroBatch(a, b, split(b - a, len(names))) for a, b in pairwise([0, *stops])]
        for names in devices
    ]
    takers = [tuple(q for q, sources in enumerate(before) if p in sources) for p in range(n_stages)]
    depths = [5, 3, 3, 1][-n_stages:]
    schedule = (
        policies.one_f_one_b(n_stages, n_micro_batches, depths)
        if training
        else policies.forward_only(n_stages, n_micro_batches)
    )
    return StepSpec(
        order=check(schedule, n_micro_batches, before=before, training=training),
        training=training,
        devices=devices,
        division=division,
        outputs=[[StageOutput(f"y{p}", to, gradient=True)] for p, to in enumerate(takers)],
        inputs=[[(p, 0) for p in sources] for sources in before],
        learns=[training] * n_stages,
        n_elements=[10] * n_stages,
        followed=[False] * n_stages,
        limited=training and rng.random() < 0.5,
        shared=some_holders(rng, n_stages) if training else (),
    )


@pytest.mark.parametrize("before", [CHAIN, DIAMOND], ids=["chain", "diamond"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_every_action_gets_its_rows_of_all_that_it_takes(seed, training, before):
    spec = random_spec(random.Random(seed), before, training=training)
    sink = Rows(spec)
    walk(spec, sink)
    every = {m: list(range(part.rows)) for m, part in enumerate(spec.division[0])}
    assert sink.forwards == {(p, m): rows for p in range(len(before)) for m, rows in every.items()}
    assert sink.answered == ({} if training else every)
    # the last stage learns from the loss, a stage that others take from once for each of them
    times = {p: {max(1, sum(p in sources for sources in before))} for p in range(len(before))}
    assert sink.ways == (times if training else {})
    losses = {
        index: sum(part.shares[index] > 0 for part in spec.division[-1])
        for index in range(len(spec.devices[-1]))
    }
    counts = {index: len(values) for index, values in sink.told.items()}
    assert counts == ({i: n for i, n in losses.items() if n} if training else {})
    replicas = [(p, i) for p, names in enumerate(spec.devices) for i in range(len(names))]
    assert sink.updates == (replicas if training else [])


def test_nothing_is_sent_from_a_device_to_itself():
    spec = random_spec(random.Random(1), CHAIN, training=True)
    spec.devices[:] = [["a"]] * 3
    spec.division[:] = [
        [replace(part, shares=(part.rows,)) for part in parts] for parts in spec.division
    ]
    sink = Rows(spec)
    walk(spec, sink)
    assert sink.sent == 0
