"""A run that goes on from a file has all of the module that was saved, whatever a new process made
of the new one: also what only answers use, and what nothing uses.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import FileError
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"
X, Y = torch.randn(8, 6), torch.randint(0, 3, (8,))


class Parts(nn.Module):
    """Weights that training, answers, both or nobody uses; some have two names, or no gradient."""

    def __init__(self, seed, spare=2):
        torch.manual_seed(seed)
        super().__init__()
        self.both = nn.Linear(6, 8)
        self.trains = nn.Linear(8, 3)
        self.answers = nn.Linear(8, 3)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.spare = nn.Linear(spare, spare)
        self.again = self.spare
        self.register_buffer("scale", torch.rand(3))
        self.register_buffer("of_answers", torch.rand(3))
        self.register_buffer("of_nobody", torch.randint(0, 99, (4,)))

    def forward(self, x):
        x = self.frozen(self.both(x).tanh())
        if self.training:
            return self.trains(x) * self.scale
        return self.answers(x) * self.scale + self.trains(x) * self.of_answers


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


def deployed(home, net, **how):
    loss = nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, X, loss=loss, example_targets=Y)
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    return home.deploy(plan, model, **how).wait()


def is_same(state, other):
    return state.keys() == other.keys() and all(torch.equal(state[n], other[n]) for n in state)


@pytest.fixture(scope="module")
def saved(pair, tmp_path_factory):
    """The file of a run, its state, and its answers."""
    path = tmp_path_factory.mktemp("saved") / "run"
    run = deployed(pair, Parts(0))
    run.fit([(X, Y)] * 2, ema=0.5).wait()
    run.save(path)
    found = path, run.state_dict(), run(X), run.state_dict(ema=True)
    run.close()
    return found


@pytest.mark.long
def test_a_new_module_answers_as_the_one_that_was_saved(pair, saved):
    path, state, answers, averages = saved
    run = deployed(pair, Parts(1), resume=path)
    assert is_same(run.state_dict(), state)
    assert is_same(run.state_dict(ema=True), averages)
    assert torch.equal(run(X), answers)
    run.fit([(X, Y)]).wait()
    later = run.state_dict()
    assert all(torch.equal(later[n], state[n]) for n in state if n.startswith(("ans", "sp", "of")))
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("own", [True, False], ids=["its own", "another"])
def test_it_is_all_brought_back_into_a_module(pair, saved, own):
    path, state, answers, _ = saved
    net, other = Parts(1), Parts(2)
    run = deployed(pair, net, resume=path)
    into = net if own else other
    run.load_into(into)
    assert is_same(into.state_dict(), state)
    assert torch.allclose(copy.deepcopy(into).eval()(X), answers)
    assert is_same(run.state_dict(), state)
    run.close()


def test_what_the_user_changes_after_that_is_taken_as_ever(pair, saved):
    net = Parts(1)
    run = deployed(pair, net, resume=saved[0])
    run.load_into()
    with torch.no_grad():
        net.answers.weight.zero_()
        net.of_nobody.zero_()
    state = run.state_dict()
    assert not state["answers.weight"].any()
    assert not state["of_nobody"].any()
    run.close()


def test_a_run_that_went_on_is_saved_with_all_of_it(pair, saved, tmp_path):
    path, state, answers, _ = saved
    for seed in (1, 2):
        run = deployed(pair, Parts(seed), resume=path)
        path = tmp_path / str(seed)
        run.save(path)
        run.close()
    run = deployed(pair, Parts(3), resume=path)
    assert is_same(run.state_dict(), state)
    assert torch.equal(run(X), answers)
    run.close()


def test_another_shape_of_what_nobody_uses_is_named(pair, saved):
    with pytest.raises(FileError, match=r"again\.bias as .*\[2\], the module as .*\[5\]"):
        deployed(pair, Parts(1, spare=5), resume=saved[0])
