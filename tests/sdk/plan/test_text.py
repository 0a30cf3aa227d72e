"""A plan as text: it round-trips, and what is wrong in an edited one is said."""

import pytest

from potluck.errors import PlanError
from potluck.plan.text import dumps, loads
from potluck.records import Plan, Stage

PLAN = Plan(
    planner="asteroid", model='a "quoted" model', micro_batch=8, n_micro_batches=4,
    latency_s=0.25, energy_j=3.5, seed=7,
    stages=(
        Stage(start=0, stop=3, devices=("laptop 1", "phone.2"), shares=(5, 3), warm_up=3),
        Stage(start=3, stop=9, devices=("jetson",), shares=(8,)),
    ),
    peak_bytes={"laptop 1": 10, "phone.2": 20}, device_energy_j={"jetson": 1.5},
    unused={"tablet": "its 3 MB hold no part\nof the model"},
)  # fmt: skip


def test_round_trips():
    assert loads(dumps(PLAN)) == PLAN


def test_reads_as_a_person_would_write_it():
    text = 'model = "m"\nmicro_batch = 2\n[[stage]]\nlayers = [0, 4]\ndevices = ["a", "b"]\nshares = [1, 1]\n'
    plan = loads(text)
    assert (plan.planner, plan.n_micro_batches, plan.training, plan.stages[0].warm_up) == ("edited", 1, True, 1)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("micro_batch = 8", "micro_batch = ", "not a plan"),
        ("micro_batch = 8", 'micro_batch = "8"', "`micro_batch` must be a whole number, got '8'"),
        ("micro_batch = 8", "", "`micro_batch` is missing"),
        ("micro_batch = 8", "micro_batch = 9", "add up to 8 rows; expected the micro-batch, 9"),
        ("warm_up = 3", "warmup = 3", "stage 0: nobody knows `warmup`"),
        ("layers = [3, 9]", "layers = [4, 9]", "stage 1 starts at layer 4; expected 3"),
        ("layers = [3, 9]", "layers = [3]", "must be \\[start, stop\\]"),
        ("shares = [5, 3]", "shares = [8, 0]", "needs a share of 1 row or more"),
        ("shares = [5, 3]", "shares = [5.0, 3]", "every entry of `shares` must be a whole number"),
    ],
)
def test_says_what_is_wrong(old, new, error):
    text = dumps(PLAN)
    assert old in text
    with pytest.raises(PlanError, match=error):
        loads(text.replace(old, new, 1))
