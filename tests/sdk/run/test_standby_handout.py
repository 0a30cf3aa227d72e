"""Steps that a standby shall take are handed out by one thread and looked at by another: none may
be lost.
"""

import sys
import threading
from concurrent.futures import Future, wait

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.sdk.run.test_switching import FOREVER, stop
from tests.timeouts import TIMEOUT_S

from potluck.run import migration
from potluck.run.migration import PlanMigration
from potluck.testing.internals import engine_of

A, B = "local-1", "local-2"


@pytest.fixture
def hasty():
    """Threads take turns at (almost) every instruction."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(usual)


class Step(Future):
    """A step that is not taken yet; whoever looks whether it is has `seen` called, once."""

    seen = None

    def done(self):
        seen, self.seen = self.seen, None
        if seen is not None:
            seen()
        return super().done()


@pytest.fixture
def steps():
    """Those that were handed out."""
    return []


@pytest.fixture
def crossing(home, steps, monkeypatch):
    """On the way from one device to another, with standbys that take no step yet."""
    _, model = make_model("mlp")
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    crossing = PlanMigration(engine_of(run), make_plan(model, ((B,), (4,)), micro_batch=4))
    monkeypatch.setattr(
        engine_of(run).group, "execute", lambda *_, **__: steps.append(Step()) or steps[-1]
    )
    monkeypatch.setattr(migration, "MOST_BEHIND", sys.maxsize)  # nobody waits for the standbys
    monkeypatch.setattr(migration, "ARENA_FRAC", float(2**40))
    yield crossing
    run.close()


def follow(crossing, step):
    x, y = make_data("mlp", 4)
    crossing.follow("train", step, {"x": x, "y": y})


def test_a_step_handed_out_while_somebody_looks_how_far_they_are_is_waited_for(crossing, steps):
    follow(crossing, 0)
    steps[0].seen = lambda: follow(crossing, 1)
    assert crossing.n_behind == 1  # as it was when somebody began to look
    assert crossing.n_behind == 2


def test_no_step_is_lost_however_often_somebody_looks(crossing, hasty):
    over = threading.Event()

    def look():
        while not over.is_set():
            _ = crossing.n_behind

    looking = threading.Thread(target=look)
    looking.start()
    for step in range(200):
        follow(crossing, step)
    over.set()
    looking.join()
    assert crossing.n_behind == 200


@pytest.mark.long
def test_whoever_waits_for_shadows_looks_again_only_when_one_has_taken_a_step(home, monkeypatch):
    """A step that was taken before ends no wait: that would be a loop which takes the time of who
    trains.
    """
    looks, (_, model) = [], make_model("mlp")

    def counted(futures, timeout, return_when):
        looks.append(timeout)
        return wait(futures, TIMEOUT_S, return_when)

    monkeypatch.setattr(migration, "wait", counted)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    handle = run.fit(make_data("mlp", 8), epochs=FOREVER)
    run.switch(make_plan(model, ((B,), (4,)), micro_batch=4)).wait()
    n_steps = stop(run, handle)
    run.close()
    assert 0 < len(looks) <= 3 * n_steps  # each step ends one wait of each of two, and of the last
