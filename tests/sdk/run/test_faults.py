"""An agent or a worker that is killed at any moment of training, of requests or of a switch: the run ends with a named
cause, or goes on where it can, and nothing is left behind.

The moment is drawn from a seed: after so many messages have come to the notebook.
"""

import random

import psutil
import pytest
from tests.sdk.run.test_switching import FOREVER, A, B, C, make_data, make_model, open_lab, plan_of

from potluck.errors import DeviceGone, PotluckError, Refused, WorkerFailed
from potluck.handle import CancelledError

torch = pytest.importorskip("torch")


class Killer:
    """Kills one process of one device when so many messages have come in."""

    def __init__(self, lab, seed):
        self._lab, self._left = lab, random.Random(seed).randrange(5, 150)
        self.name = random.Random(seed).choice((A, B, C))
        self.what = random.Random(seed + 1).choice(("agent", "worker"))
        self.struck = False
        controller = lab._link._controller
        self._handle = controller.handle
        controller.handle = self._count

    def _count(self, event, now_s):
        self._left -= hasattr(event, "message")
        if self._left <= 0 and not self.struck:
            self.struck = True
            agent = psutil.Process(self._lab._lab.agents.process(self.name).pid)
            for process in [agent] if self.what == "agent" else agent.children(recursive=True):
                process.kill()
        return self._handle(event, now_s)


def end_of(handle):
    """How it ended: None where it went well."""
    try:
        handle.wait(90)
    except (PotluckError, CancelledError) as error:
        return error
    return None


def check(error, killer):
    """The cause is named: a device gone or a worker that died; the device that was killed, or one that noticed."""
    assert isinstance(error, (DeviceGone, WorkerFailed, Refused))
    assert any(name in str(error) for name in (A, B, C))
    assert killer.struck


def end_of_training(run, at_work, killer):
    """How training ends, or None where it has gone on for some steps after the blow."""
    while not killer.struck and not at_work.done:
        pass
    before = run.step
    while killer.name not in run.plan.devices and run.step < before + 3 and not at_work.done:
        pass
    if killer.name not in run.plan.devices:
        at_work.cancel()
    error = end_of(at_work)
    return None if isinstance(error, CancelledError) else error


def end_of_requests(run, x, killer):
    """How requests end, or None where they are answered for long after the blow."""
    after = 0
    while after < 20:
        try:
            run(x)
        except PotluckError as error:
            return error
        after += killer.struck
    return None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("doing", ["training", "requests"])
def test_killed_at_any_moment(doing, seed):
    lab = open_lab()
    family = [p for n in (A, B, C) for p in _family(lab, n)]
    try:
        model, (x, y) = make_model(), make_data()
        training = doing == "training"
        names = ("ab", "abc") if seed % 2 else ("abc", "ca")
        run = lab.deploy(plan_of(model, names[0], training=training), model).wait(60)
        killer = Killer(lab, seed)
        at_work = run.fit((x, y), epochs=FOREVER) if training else None
        error = end_of(run.switch(plan_of(model, names[1], training=training)))
        if error is not None:
            check(error, killer)
        error = end_of_training(run, at_work, killer) if training else end_of_requests(run, x, killer)
        if killer.name in run.plan.devices:
            check(error, killer)
        else:
            assert error is None
    finally:
        lab.close()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def _family(lab, name):
    agent = psutil.Process(lab._lab.agents.process(name).pid)
    return [agent, *agent.children(recursive=True)]
