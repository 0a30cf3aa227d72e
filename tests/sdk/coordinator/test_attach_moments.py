"""A coordinator is killed at any message of a notebook that looks at a training again, stops it and
takes it back: the next one in line answers, tells the same losses, and the run goes on in the
notebook as if nothing had happened.
"""

import random

import pytest
from tests.sdk.coordinator.in_memory import again, new_keys, until
from tests.sdk.coordinator.test_kill_moments import N_BEFORE, N_STEPS, Watched, case, comes_back

import potluck
from potluck.coordinator.journal import ENDED, STOPPED
from potluck.errors import HomeError
from potluck.home import Home

torch = pytest.importorskip("torch")
__all__ = ["case"]  # the fixture
N_MOMENTS, N_FEW = 60, 2
BEFORE, ACTED = "before it is heard", "done, and its answer is lost"


class FaultyHome(Watched):
    """A home in which the notebook's own messages are counted; one of them meets a fault."""

    def __init__(self, folder, case):
        super().__init__(folder, case)
        self.n_asked, self.meets = 0, None

    def carry(self, place, what, data, about):
        if place.asker is not None:
            return super().carry(place, what, data, about)
        self.n_asked += 1
        meets, number = self.meets, self.n_asked
        if meets is not None and meets[:2] == (number, BEFORE):
            meets[2]()
        answer = super().carry(place, what, data, about)
        if meets is not None and meets[:2] == (number, ACTED):
            meets[2]()
            raise HomeError(f"no coordinator answers at {place}.", is_silent=True)
        return answer


@pytest.fixture
def home(tmp_path, case):
    found = FaultyHome(tmp_path, case)
    yield found
    found.close()
    assert found.wrong == []


def draws(n):
    """At which of the notebook's messages, how, and whether who was killed comes back."""
    rng = random.Random("attach")
    found = [
        (rng.randint(1, 12), rng.choice([BEFORE, ACTED]), rng.random() < 0.5) for _ in range(n)
    ]
    few, more = found[:N_FEW], found[N_FEW:]
    return [*few, *(pytest.param(*each, marks=pytest.mark.long) for each in more)]


@pytest.mark.long
@pytest.mark.parametrize(("number", "how", "is_back"), draws(N_MOMENTS))
def test_who_acts_is_killed_while_a_training_is_looked_at_and_taken_back(
    home, case, tmp_path, number, how, is_back
):
    home.shared()

    def fault():
        home.kill("A")
        if is_back:
            home.start("A")

    home.n_asked, home.meets = 0, (number, how, fault)
    training = home.attached("A")
    seen = training.losses
    assert seen == case.losses[N_BEFORE:][: len(seen)]
    training.stop()
    home.meets = None
    comes_back(home)
    assert training.state in (STOPPED, ENDED), training.why
    losses = training.losses
    assert losses == case.losses[N_BEFORE:][: len(losses)]
    # who takes over computes the steps since the latest state again, and may be stopped among them
    until(lambda: again(lambda: training.save(tmp_path / "state")) == training.step)
    n_done = N_BEFORE + len(losses)
    rest = case.batches[n_done:]
    notebook = home.lab.notebook("taken back", new_keys())
    until(lambda: not home.acting())
    with Home.over(notebook) as mine:
        run = mine.deploy(
            case.plan, case.model, optimizer=potluck.AdamW(1e-2), resume=tmp_path / "state"
        ).wait()
        assert run.step == n_done
        if rest:
            assert run.fit(rest).wait().losses == case.losses[n_done:]
        weights = run.state_dict()
        assert run.step == N_STEPS
        run.close()
    assert all(torch.equal(tensor, case.weights[name]) for name, tensor in weights.items())
