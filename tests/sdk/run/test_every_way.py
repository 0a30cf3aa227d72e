"""Every schedule on every pattern of stages over every switch: ten steps of AdamW are those of one
machine, and each request is answered once. Pairs of these are tried each time, all of them in `make
test-long`."""

import copy
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product

import pytest
from tests.sdk.graph.branching_modules import TwoEncoders
from tests.sdk.offload.pairs import covering
from tests.sdk.run.conftest import make_data, train_alone
from tests.sdk.run.test_branches import branch_ends
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.records import Plan, Stage
from potluck.schedule import policies
from potluck.testing.internals import engine_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")

MICRO = 4
N_MICRO = 6
STEPS = 10
BATCH = MICRO * N_MICRO
# the switch begins behind one step, and standbys follow until the other
SWITCHED_AFTER, FOLLOWED_UNTIL = 3, 6
# of replicated stages: sums of shares are in another order. All others are equal to the bit
ROUNDING = 1e-5

# Stages as DEVICE ROWS, joined by |: before the switch, and after it where it is not the cut that
# moves.
PATTERNS = {
    "none": {"before": "A4|B4", "added": "A4|B4|C4", "removed": "B4", "shares": None},
    "first": {"before": "A3 B1|B4", "added": "A2 B1 C1|B4", "removed": "A4", "shares": "A1 B3|B4"},
    "middle": {
        "before": "A4|A1 B3|B4",
        "added": "A4|A1 B2 C1|C4",
        "removed": "B4|B4",
        "shares": "A4|A2 B2|B4",
    },
    "last": {"before": "A4|B3 A1", "added": "A4|B2 C2", "removed": "B4", "shares": "A4|B1 A3"},
    "both": {
        "before": "A3 B1|A1 B3",
        "added": "A2 B1 C1|B1 C3",
        "removed": "B4|B4",
        "shares": "A1 B3|A2 B2",
    },
    "branches": {"before": "A4|B4", "added": "A4|B4|C4|B4", "removed": "A4", "shares": None},
    "shared branches": {
        "before": "A3 B1|B4",
        "added": "A3 B1|C4",
        "removed": "B4",
        "shares": "A2 B2|B4",
    },
}
SWITCHES = ("none", "cut moved", "added", "removed", "shares")
TRAINING = {
    "1f1b": "1f1b",  # as deep as Asteroid says
    "shallow 1f1b": lambda plan: one_f_one_b(plan, range(len(plan.stages), 0, -1)),
    # one micro-batch after the other
    "flat 1f1b": lambda plan: one_f_one_b(plan, [1] * len(plan.stages)),
    "fill-drain": "fill-drain",
    "interleaved": "interleaved",
}
INFERENCE = ("streaming", "single requests")


def one_f_one_b(plan, depths):
    return policies.one_f_one_b(len(plan.stages), plan.n_micro_batches, list(depths))


CASES = [
    case
    for case in product((*TRAINING, *INFERENCE), PATTERNS, SWITCHES)
    if (case[2] != "shares" or PATTERNS[case[1]]["shares"])
    # four stages on A, B, C, B do not go round: it is refused
    and case != ("interleaved", "branches", "added")
]
COVERING = covering(CASES)


def some(policies):
    return [
        pytest.param(*case, marks=[] if case in COVERING else [pytest.mark.long])
        for case in CASES
        if case[0] in policies
    ]


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


class Subject:
    """A model, its data, and what one machine makes of both."""

    def __init__(self, net, inputs, targets, *, bounds=None):
        self.data, self._bounds = (*inputs, targets), bounds
        self.model = potluck.Model.from_torch(
            net,
            tuple(tensor[:6] for tensor in inputs),
            loss=torch.nn.functional.cross_entropy,
            example_targets=targets[:6],
        )
        with torch.no_grad():
            self.outputs = net(*inputs)
        trained = copy.deepcopy(net)
        self.losses = train_alone(
            trained,
            inputs,
            targets,
            batch=BATCH,
            micro_batch=MICRO,
            epochs=STEPS,
            make_optimizer=lambda parameters: torch.optim.AdamW(parameters, 1e-3),
        )
        self.trained = trained.state_dict()

    def bounds(self, n_stages, training):
        """Where the layers are cut: evenly, or where the branches end and in the middle of what
        joins them.
        """
        if self._bounds is not None:
            *ends, stop = self._bounds(self.model, training)
            return [*ends, (ends[-1] + stop) // 2, stop]
        n_layers = len(self.model.layers(training))
        return [round(i * n_layers / n_stages) for i in range(n_stages + 1)]


@pytest.fixture(scope="module")
def chain():
    torch.manual_seed(0)
    inner = [layer for _ in range(4) for layer in (torch.nn.Linear(16, 16), torch.nn.Tanh())]
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), *inner, torch.nn.Linear(16, 4)
    )
    x, y = make_data("mlp", BATCH)
    return Subject(net, (x,), y)


@pytest.fixture(scope="module")
def branched():
    torch.manual_seed(0)
    return Subject(
        TwoEncoders(), TwoEncoders.example(BATCH), torch.randint(0, 4, (BATCH,)), bounds=branch_ends
    )


@pytest.fixture
def subject(request, pattern):
    return request.getfixturevalue("branched" if "branches" in pattern else "chain")


def plan_of(subject, text, *, times=1, moved=0, n_micro_batches=N_MICRO, training=True):
    """The plan whose stages are written in `text`, so many times over, with its cuts moved by so
    many layers.
    """
    rows = text.split("|") * times
    bounds = subject.bounds(len(rows), training)
    for p, bound in enumerate(bounds[1:-1], 1):
        bounds[p] = max(bounds[p - 1] + 1, bound + moved)  # every stage keeps a layer
    stages = []
    for p, (start, stop) in enumerate(pairwise(bounds)):
        shares = {
            f"local-{'ABC'.index(d) + 1}": int(n)
            for d, n in re.findall(r"([ABC])(\d)", rows[p % len(rows)])
        }
        warm_up = min(2 * (len(bounds) - 1 - p) - 1, n_micro_batches)
        stages.append(
            Stage(
                start=start,
                stop=stop,
                devices=tuple(shares),
                shares=tuple(shares.values()),
                warm_up=warm_up,
            )
        )
    return Plan(
        planner="by hand",
        model="test",
        stages=tuple(stages),
        micro_batch=MICRO,
        n_micro_batches=n_micro_batches,
        training=training,
    )


def plans_of(subject, pattern, switch, **of):
    """The plan before the switch, and the one after it."""
    before = plan_of(subject, PATTERNS[pattern]["before"], **of)
    if switch == "none":
        return before, None
    if switch == "cut moved":
        return before, plan_of(subject, PATTERNS[pattern]["before"], moved=-1, **of)
    return before, plan_of(subject, PATTERNS[pattern][switch], **of)


def is_exact(*plans):
    return all(len(stage.devices) == 1 for plan in plans if plan for stage in plan.stages)


def steps_over_a_switch(run, subject, plan):
    """Ten times the batch. The switch begins behind one of them, and goes on to its end only behind
    another.
    """
    opened, followed = threading.Event(), threading.Event()

    def watch(done_frac, text):
        if text == "fetching what is missing":
            opened.set()
            followed.wait(TIMEOUT_S)

    for step in range(STEPS):
        if plan is not None and step == SWITCHED_AFTER:
            with engine_of(run).boundary():  # so that it cannot open before we listen
                switching = run.switch(plan)
                switching.listen(watch)
            switching.on_done(lambda handle: opened.set())
            assert opened.wait(TIMEOUT_S)
        if plan is not None and step == FOLLOWED_UNTIL:
            followed.set()
            switching.wait()
            assert run.plan == plan
        yield subject.data


@pytest.mark.few(1)
@pytest.mark.parametrize(("policy", "pattern", "switch"), some(TRAINING))
def test_ten_steps_of_adamw_are_those_of_one_machine(trio, subject, policy, pattern, switch):
    times = 2 if policy == "interleaved" else 1
    before, after = plans_of(subject, pattern, switch, times=times)
    tolerance = 0.0 if is_exact(before, after) else ROUNDING
    run = trio.deploy(before, subject.model, schedule=TRAINING[policy]).wait()
    losses = run.fit(steps_over_a_switch(run, subject, after)).wait().losses
    state = run.state_dict()
    run.close()
    assert losses == pytest.approx(subject.losses, rel=0, abs=tolerance)
    assert (
        max((state[name] - tensor).abs().max().item() for name, tensor in subject.trained.items())
        <= tolerance
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("policy", "pattern", "switch"), some(INFERENCE))
def test_each_request_is_answered_once(trio, subject, policy, pattern, switch):
    """Single requests one after the other, or streams of them, by two who ask at once."""
    n_micro_batches = 2 if policy == "streaming" else 1
    before, after = plans_of(
        subject, pattern, switch, n_micro_batches=n_micro_batches, training=False
    )
    run = trio.deploy(before, subject.model).wait()
    over = threading.Event()
    counts = []

    def ask():
        while not over.is_set():
            rows = BATCH - 1 if policy == "streaming" else MICRO
            out = run(*(tensor[:rows] for tensor in subject.data[:-1]))
            assert (out - subject.outputs[:rows]).abs().max().item() <= 1e-6
            counts.append(-(-rows // before.batch))

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2 if policy == "streaming" else 1)]
        while len(counts) < 3 and not any(future.done() for future in asking):
            time.sleep(0)
        if after is not None:
            run.switch(after).wait()
            assert run.plan == after
        over.set()
        for future in asking:
            future.result()
    assert engine_of(run).n_requests == sum(counts)
    run.close()
