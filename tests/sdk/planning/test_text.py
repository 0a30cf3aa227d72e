"""A plan as text: it round-trips, and what is wrong in an edited one is said."""

import pytest

import potluck
from potluck.errors import FileError, PlanError
from potluck.planning.text import dumps, loads
from potluck.records import Plan, Stage

PLAN = Plan(
    planner="asteroid",
    model='a "quoted" model',
    micro_batch=8,
    n_micro_batches=4,
    latency_s=0.25,
    energy_j=3.5,
    seed=7,
    home="smart-home-2",
    stages=(
        Stage(start=0, stop=3, devices=("laptop 1", "phone.2"), shares=(5, 3), warm_up=3),
        Stage(start=3, stop=9, devices=("jetson",), shares=(8,)),
    ),
    peak_bytes={"laptop 1": 10, "phone.2": 20},
    device_energy_j={"jetson": 1.5},
    unused={"tablet": "its 3 MB hold no part\nof the model"},
)


def test_round_trips():
    assert loads(dumps(PLAN)) == PLAN


def test_reads_as_a_person_would_write_it():
    text = (
        'model = "m"\nmicro_batch = 2\n[[stage]]\nlayers = [0, 4]\ndevices = ["a", '
        '"b"]\nshares = [1, 1]\n'
    )
    plan = loads(text)
    assert (plan.planner, plan.n_micro_batches, plan.training, plan.stages[0].warm_up) == (
        "edited",
        1,
        True,
        1,
    )


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("micro_batch = 8", "micro_batch = ", "not a plan"),
        ("micro_batch = 8", 'micro_batch = "8"', "`micro_batch` must be a whole number, got '8'"),
        ("micro_batch = 8", "", "`micro_batch` is missing"),
        ("format = 1", "format = 2", "of format 2; this version reads 1"),
        ("micro_batch = 8", "micro_batch = 9", "add up to 8 rows; expected the micro-batch, 9"),
        ("warm_up = 3", "warmup = 3", "stage 0: nobody knows `warmup`"),
        ("layers = [3, 9]", "layers = [4, 9]", "stage 1 starts at layer 4; expected 3"),
        (
            "layers = [3, 9]",
            "layers = [3, 8]",
            "cover 8 layers, and the model .* has 9.*at layer 9",
        ),
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


def test_a_file_round_trips(tmp_path):
    PLAN.save(tmp_path / "plan.toml")
    assert potluck.load_plan(tmp_path / "plan.toml") == PLAN
    with pytest.raises(FileError, match=r"cannot write .*plan\.toml"):
        PLAN.save(tmp_path / "nowhere" / "plan.toml")
    with pytest.raises(FileError, match=r"cannot read the plan .*: No such file or directory"):
        potluck.load_plan(tmp_path / "plan")
    with pytest.raises(FileError, match=r"cannot read the plan .*: Is a directory"):
        potluck.load_plan(tmp_path)
    (tmp_path / "note.txt").write_text("no plan")
    with pytest.raises(PlanError, match=r"note\.txt: this is not a plan"):
        potluck.load_plan(tmp_path / "note.txt")


@pytest.fixture(scope="module")
def profile():
    return potluck.estimate("smart-home-2", "bert-small", max_layers=6, rows=(1, 8))


@pytest.fixture(scope="module")
def best(profile):
    return potluck.plan(profile, potluck.Training(batch=8)).best


@pytest.mark.long
def test_a_plan_from_a_file_is_judged_as_before(profile, best, tmp_path):
    best.save(tmp_path / "plan.toml")
    loaded = potluck.load_plan(tmp_path / "plan.toml")
    assert (loaded, loaded.home) == (best, "smart-home-2")
    assert potluck.judge(loaded, profile) == best


@pytest.mark.long
@pytest.mark.parametrize(
    ("home", "model", "workload", "pattern"),
    [
        ("smart-home-2", "bert-base", None, "for the model 'bert-small', not for 'bert-base'"),
        ("smart-home-1", "bert-small", None, "for the home 'smart-home-2', not for 'smart-home-1'"),
        (
            "smart-home-2",
            "bert-small",
            potluck.Inference(batch=8),
            "for training; asked was inference",
        ),
        ("smart-home-2", "bert-small", potluck.Training(batch=9), "8 in all; the batch has 9"),
    ],
)
def test_a_plan_for_something_else_is_refused(best, home, model, workload, pattern):
    other = potluck.estimate(home, model, max_layers=6, rows=(1, 8))
    with pytest.raises(PlanError, match=pattern):
        potluck.judge(best, other, workload)


def test_a_plan_for_devices_that_are_gone_is_refused_with_near_names(profile, best):
    (name, *_) = best.devices
    with pytest.raises(PlanError, match=f"{name}: is not in this home"):
        potluck.judge(best, profile.without_device(name))
