"""Arguments of the wrong kind are answered with what was expected, and what to write instead."""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError, UserError

np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")


@pytest.fixture(scope="module")
def model():
    net = torch.nn.Linear(4, 2)
    return potluck.Model.from_torch(
        net,
        torch.zeros(2, 4),
        loss=torch.nn.CrossEntropyLoss(),
        example_targets=torch.zeros(2, dtype=torch.int64),
    )


@pytest.fixture(scope="module")
def plans(home, model):
    return potluck.plan(home.profile(model, rows=(1, 4), repeats=1), potluck.Training(batch=4))


@pytest.fixture(scope="module")
def run(home, plans):
    deployed = home.deploy(plans.best).wait()
    yield deployed
    deployed.close()


DATA = (torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda home, run: home.profile(torch.nn.Linear(1, 1)),
            "a potluck.Model is profiled, got Linear",
        ),
        (
            lambda home, run: potluck.plan(torch.nn.Linear(1, 1), potluck.Training(batch=4)),
            "made from a profile",
        ),
        (lambda home, run: home.deploy("plan"), "one plan is deployed, got str"),
        (
            lambda home, run: home.deploy(run.plan, torch.nn.Linear(4, 2)),
            "a potluck.Model is deployed, got Linear",
        ),
        (lambda home, run: home.deploy(run.plan, seed="x").wait(), "the seed is a whole number"),
        (lambda home, run: home.deploy(run.plan, seed=2**54).wait(), "the seed is a whole number"),
        (
            lambda home, run: home.deploy(run.plan, schedule=lambda plan: "0F0").wait(),
            "a schedule is rows of actions, one for each stage.*got '0F0'",
        ),
        (
            lambda home, run: home.deploy(run.plan, schedule=lambda plan: None).wait(),
            "a schedule is rows of actions.*got None",
        ),
        (
            lambda home, run: home.deploy(run.plan, schedule=["0F0"]).wait(),
            r"no schedule is called \['0F0'\]",
        ),
        (
            lambda home, run: replace(run.plan.stages[0], shares=(2.0,), devices=("local-1",)),
            r"shares are whole numbers.*\(2\.0,\)",
        ),
        (lambda home, run: replace(run.plan.stages[0], stop=1.0), "layers are whole numbers"),
        (lambda home, run: replace(run.plan.stages[0], warm_up=1.5), "warm_up is a whole number"),
        (lambda home, run: replace(run.plan, micro_batch=4.0), "rows of micro-batches are whole"),
        (
            lambda home, run: run.evaluate(
                DATA, lambda outputs, labels: outputs.argmax(1) == labels
            ),
            r"a score is one number for a batch.*got a tensor of the shape \[8\]",
        ),
        (
            lambda home, run: run.evaluate(DATA, lambda outputs, labels: None),
            "a score is one number for a batch.*got None",
        ),
        (
            lambda home, run: run.load_into(torch.nn.Linear(4, 3)),
            r"weight has the shape \[3, 4\] in the module Linear.*\[2, 4\]",
        ),
        (
            lambda home, run: home.deploy(run.plan, optimizer=torch.optim.SGD).wait(),
            "one of potluck's.*, got type",
        ),
        (lambda home, run: run.switch("plan"), "a run switches to a plan, got str"),
        (lambda home, run: run.fit([]).wait(), "nothing to train on"),
        (
            lambda home, run: run.fit(iter([DATA]), epochs=2),
            "can be gone through once, and 2 epochs",
        ),
        (
            lambda home, run: run.fit((DATA[0].double(), DATA[1])).wait(),
            r"Convert it: \.to\(torch\.float32\)",
        ),
        (lambda home, run: run(torch.zeros(4)), r"first dimension is the batch: x\[None\]"),
        (lambda home, run: run(DATA[0], DATA[0]), r"1 tensor is expected \(input\); got 2"),
        (lambda home, run: run.save("nowhere/run.st"), "there is no folder nowhere"),
        (
            lambda home, run: potluck.Training(batch=2.5),
            "batch must be a whole number of rows, got 2.5",
        ),
        (lambda home, run: potluck.AdamW(lr="fast"), "lr must be a number, got 'fast'"),
        (lambda home, run: potluck.Home.local("2"), "'2' local agents are not possible"),
        (lambda home, run: potluck.estimate("family", torch.nn.Linear(1, 1)), "got Linear"),
        (
            lambda home, run: home.deploy(run.plan, refine_s=-1).wait(),
            "refine_s is a number of seconds, 0 or",
        ),
        (lambda home, run: run.fit(3), "data are batches, got int"),
        (
            lambda home, run: run.fit(DATA, epochs=1.5),
            "epochs is a whole number of 1 or more, got 1.5",
        ),
        (
            lambda home, run: run.fit(DATA, epochs=-1),
            "epochs is a whole number of 1 or more, got -1",
        ),
        (
            lambda home, run: run.fit(DATA, optimizer="adam"),
            "the optimizer is one of potluck's.*, got str",
        ),
        (
            lambda home, run: run.fit(DATA, optimizer=potluck.SGD(1e39)),
            r"SGD\(lr=1e\+39.*takes no step on weights",
        ),
        (
            lambda home, run: home.deploy(
                run.plan, optimizer=potluck.SGD(weight_decay=1e39)
            ).wait(),
            r"SGD\(.*weight_decay=1e\+39.*takes no step on weights of float32",
        ),
        (
            lambda home, run: run.load_into(torch.nn.Sequential(torch.nn.Linear(4, 2))),
            "none of this model's weights",
        ),
        (lambda home, run: potluck.Training(batch="64"), "batch must be a number, got '64'"),
        (lambda home, run: potluck.Home(peers="192.168.1.7"), "peers is a list of addresses"),
    ],
)
def test_says_what_was_expected(home, run, call, text):
    with pytest.raises(UserError, match=text):
        call(home, run)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"rows": 4}, "rows are batch sizes"),
        ({"rows": (0,)}, "rows are batch sizes"),
        ({"repeats": 0}, "measured 1 to"),
        ({"devices": "local-1"}, "devices are a list of names"),
    ],
)
def test_says_what_can_be_measured(home, model, more, text):
    with pytest.raises(UserError, match=text):
        home.profile(model, **more)


@pytest.mark.parametrize(
    ("workload", "qoe"), [("train", None), (potluck.Inference(), {"latency_s": 1})]
)
def test_says_what_can_be_planned(workload, qoe):
    with pytest.raises(
        UserError, match=r"plans are made for training or inference|limits are a potluck\.QoE"
    ):
        potluck.plan(potluck.estimate("family", "bert-small", max_layers=2), workload, qoe)


def test_a_request_takes_arrays_and_refuses_no_rows(run):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    assert torch.equal(run(x), run(torch.from_numpy(x)))
    with pytest.raises(UserError, match="one row or more"):
        run(torch.zeros(0, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_run_is_refused_and_switched_off_it_is_nothing(home, run, dtype):
    """It would convert on one machine, and not on devices, whose types were settled when the model
    was made.
    """
    before, score = run.step, torch.nn.functional.cross_entropy
    uses = (lambda: run(DATA[0]), lambda: run.fit(DATA).wait(), lambda: run.evaluate(DATA, score))
    with torch.autocast("cpu", dtype=dtype):
        for use in uses:
            with pytest.raises(
                ModelError, match=r"under torch\.autocast\('cpu'\).*outside that block"
            ):
                use()
        assert run.step == before
        with torch.autocast("cpu", enabled=False):
            for use in uses:
                use()
    assert run.step == before + 2


def test_a_loss_that_is_no_number_is_noted_once_and_training_goes_on(run):
    before = run.step
    history = run.fit((DATA[0] * float("nan"), DATA[1])).wait()
    assert len(history.losses) == 2
    assert [note.partition(":")[0] for note in history.notes] == [
        f"the loss of step {before + 1} is nan"
    ]


def test_a_plan_for_a_device_that_the_profile_does_not_know_runs_and_is_not_predicted(home, model):
    profile = home.profile(model, train=False, rows=(1,), repeats=1, devices=["local-1"]).wait()
    plan = make_plan(model, (("local-2",), (4,)), micro_batch=4, training=False)
    deployed = home.deploy(plan, model, profile=profile).wait()
    assert deployed(DATA[0]).shape == (8, 2)
    assert deployed.predicted is None
    deployed.close()
