"""A coordinator is killed between any two messages: never do two act, and the training learns what
one machine learns, each step once.
"""

import random
import threading
from types import SimpleNamespace

import pytest
from tests.sdk.coordinator.in_memory import JOB, Coordinators, again, until
from tests.sdk.coordinator.test_coordinator import STAGES, handed_over
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.coordinator.job import JOURNAL
from potluck.coordinator.journal import ENDED
from potluck.errors import FileError, HomeError
from potluck.run import checkpoint
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
N_STEPS, N_BEFORE = 30, 3
FEW, MANY = 2, 60  # moments of each kind


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """What one machine learns, and the job that is to learn it."""
    torch.manual_seed(0)
    _, model = make_model("mlp")
    x, y = make_data("mlp", 8 * N_STEPS)
    plan = make_plan(model, *STAGES, micro_batch=4, n_micro_batches=2)
    batches = list(zip(x.split(8), y.split(8), strict=True))
    with memory_home(2) as home:
        run = home.deploy(plan, model, optimizer=potluck.AdamW(1e-2)).wait()
        losses = run.fit(batches).wait().losses
        weights = run.state_dict()
    found = SimpleNamespace(model=model, plan=plan, batches=batches, losses=losses, weights=weights)
    found.packed = tmp_path_factory.mktemp("job") / "packed"
    handed_over(found.packed, found, N_BEFORE)
    return found


@pytest.fixture
def home(tmp_path, case):
    found = Watched(tmp_path, case)
    yield found
    found.close()
    assert found.wrong == []


class Watched(Coordinators):
    """After each message it is looked at who acts, and at what they tell."""

    def __init__(self, folder, case, names=("A", "B")):
        super().__init__(folder, names)
        self.case, self.wrong = case, []
        self._faults, self._looking = [], threading.Lock()
        self.at = self._look

    def inject(self, after, act):
        """Do this so many messages from now."""
        self._faults.append((self.n_messages + after, act))

    def inject_all(self, after, *acts):
        """The same; comes back once it was done. Where all is over before, it is not done: nobody
        would bring back who is killed while the end is looked at.
        """
        done = []
        self.inject(after, lambda: done.append([act() for act in acts]))
        until(lambda: done or self.is_over())
        if self._due(float("inf")):
            return
        until(lambda: done)

    def _look(self, number):
        if len(self.acting()) > 1:
            self.wrong.append(f"message {number}: {self.acting()} act at once")
        for name in self.acting():
            self._check_told(name)
        for act in self._due(number):
            act()

    def _due(self, number):
        """Each of the faults whose moment has come, once, though several threads look."""
        with self._looking:
            due = [act for at, act in self._faults if at <= number]
            self._faults = [each for each in self._faults if each[0] > number]
        return due

    def _check_told(self, name):
        process = self.alive.get(name)
        journal = process.coordinator.journal(JOB) if process is not None else None
        losses = journal.published.losses.copy() if journal is not None else []
        if tuple(losses) != self.case.losses[N_BEFORE:][: len(losses)]:
            self.wrong.append(f"{name} tells {losses}")

    def shared(self):
        """A trains, and B has a copy that counts; what a notebook sees that has looked before."""
        self.start("A")
        self.start("B")
        self.hand_over(self.case.packed, "A")
        until(lambda: again(lambda: self.join("B", "A")))
        until(lambda: self.counts("B"))
        return self.attached("A")

    def ends(self, training=None, back=""):
        """Whoever acts trains to the end, and all is as if nothing had happened; of those in
        `back` whoever is killed comes back.
        """

        def looked():
            nonlocal training
            comes_back(self, back)
            training = training or self.attached(self.asked())
            return training.state

        until(lambda: again(looked) not in ("waiting", "training") and self.holders())
        assert (training.state, training.why, training.step) == (ENDED, "", N_STEPS)
        assert training.losses == self.case.losses[N_BEFORE:]
        name, *_ = self.holders()
        state = checkpoint.load(self.disk(name) / JOB / self.progress(name).saved[0])
        assert state.step == N_STEPS
        for key, tensor in state.weights.items():
            assert torch.equal(tensor, self.case.weights[key])

    def asked(self):
        """Whom a notebook asks first: who has the job, where it was over before all had it."""
        there = (*self.alive, *self.names)
        has_it = [name for name in there if (self.disk(name) / JOB / JOURNAL).exists()]
        return (*has_it, *there)[0]

    def is_over(self):
        """Whether nothing is left to train."""
        return any(self.progress(name).is_over for name in tuple(self.alive))

    def holders(self):
        """Of those that are there, who knows that it has ended and has what was learned."""
        return [name for name in tuple(self.alive) if self.knows_end(name) and self.has_end(name)]

    def knows_end(self, name):
        """Whether its journal says so."""
        progress = self.progress(name)
        return progress.state == ENDED and progress.saved[1] == N_STEPS

    def has_end(self, name):
        """Whether the last state is there."""
        try:
            path = self.disk(name) / JOB / self.progress(name).saved[0]
            return checkpoint.step_of(path) == N_STEPS
        except FileError:
            return False


def moments(n, most, kind):
    """Numbers of messages, by chance, of which the first ones are sure to be there."""
    rng = random.Random(kind)
    return sorted({*range(1, n // 3 + 1), *(rng.randint(1, most) for _ in range(n - n // 3))})


def sample(most, kind, n_few=FEW):
    """A few of them for each day, many for the long tests."""
    few = moments(n_few, most, kind)
    more = [n for n in moments(MANY, most, kind) if n not in few]
    return pytest.mark.parametrize(
        "moment", [*few, *(pytest.param(n, marks=pytest.mark.long) for n in more)]
    )


@pytest.mark.long
def test_without_a_kill_it_ends_and_both_have_all(home):
    training = home.shared()
    looks = [(training.copies, repr(training)) for _ in range(5)]
    home.ends(training)
    for copies, shown in looks:
        assert copies in (("B:1",), ())  # none: it has ended meanwhile
        assert ("its journal copied to B:1" in shown) or "training" not in shown
    assert training.copies == ()
    until(lambda: all(home.progress(name).state == ENDED for name in "AB"))


@pytest.mark.long
@sample(500, "takeover")
def test_who_acts_is_killed_and_a_copy_that_counts_goes_on(home, moment):
    training = home.shared()
    home.inject(moment, lambda: home.kill("A"))
    home.ends(training)


def test_who_has_the_last_state_alone_is_killed_and_it_is_computed_again(home, monkeypatch):
    training, killed = home.shared(), []
    carry = home.carry

    def struck(place, what, data, about):
        if what == "read" and home.progress("A").saved[1] == N_STEPS:
            if home.knows_end("B") and not killed:
                killed.append(home.kill("A"))
            raise HomeError("not now.", is_silent=True)
        return carry(place, what, data, about)

    monkeypatch.setattr(home, "carry", struck)
    until(lambda: killed)
    assert not home.has_end("B")
    monkeypatch.undo()
    home.ends(training)
    assert home.has_end("B")


@sample(60, "hand-over", 0)  # half a minute, now and then
def test_killed_while_a_job_comes_it_is_handed_over_again(home, moment):
    home.start("A")
    home.inject(moment, lambda: home.kill("A"))

    def comes():
        if "A" not in home.alive:
            home.start("A")
        home.hand_over(home.case.packed, "A")

    again(comes)
    home.ends(back="A")


@pytest.mark.long
@sample(200, "copying")
@pytest.mark.parametrize("name", ["A", "B"])
def test_killed_while_it_is_copied_whoever_it_was_comes_back(home, moment, name):
    home.start("A")
    home.start("B")
    home.hand_over(home.case.packed, "A")
    home.inject(moment, lambda: home.kill(name))

    def joins():
        comes_back(home)
        return home.alive["B"].coordinator.followed or home.join("B", "A") or home.is_over()

    until(lambda: again(joins))
    home.ends(back="AB")


def comes_back(home, names="AB"):
    """Who was killed begins again with what is on its disk."""
    for name in names:
        if name not in home.alive:
            home.start(name)


@pytest.mark.long
@sample(400, "both")
def test_both_are_killed_at_once_and_come_back(home, moment):
    training = home.shared()
    home.inject_all(moment, lambda: home.kill("A"), lambda: home.kill("B"))
    comes_back(home)
    home.ends(training)


@pytest.mark.long
@sample(300, "again", 1)
def test_the_next_one_is_killed_while_it_takes_over_and_comes_back(home, moment):
    training = home.shared()
    home.kill("A")
    home.inject_all(moment, lambda: home.kill("B"))
    comes_back(home, "B")
    home.ends(training)


@sample(300, "all three", 1)
def test_who_was_killed_is_back_when_the_next_one_is(home, moment):
    training = home.shared()
    home.kill("A")
    home.start("A")
    home.inject_all(moment, lambda: home.kill("B"))
    comes_back(home, "B")
    home.ends(training)


@pytest.mark.long
@sample(400, "parted")
def test_one_that_is_cut_off_from_the_devices_ends_and_copies_from_the_next(home, moment):
    training = home.shared()
    home.inject_all(moment, lambda: home.part("A"))
    until(lambda: "B" in home.acting() or home.is_over())
    home.mend("A")
    home.ends(training)
