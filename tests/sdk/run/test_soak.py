"""Six agents train and answer while one after the other is killed, loses its worker, stands still
or leaves in good order: every step and every answer is accounted for.

For 60 seconds, or for as many as POTLUCK_SOAK_S says: `POTLUCK_SOAK_S=1800` is the long one.
"""

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import psutil
import pytest
from tests.sdk.run.conftest import make_plan
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.testing.faults import agents_of

torch = pytest.importorskip("torch")
nn = torch.nn
SOAK_S = float(os.environ.get("POTLUCK_SOAK_S", "60"))
FAULT_S = (2.0, 10.0)  # from one fault to the next
FREEZE_S = (0.5, 5.0)  # a device that stands still for two seconds is taken for lost
PACE_S = 0.1  # of the data: half an hour is some 15,000 steps
BATCH, ROWS = 8, 4
DTYPE = torch.float64  # float32 would not tell a lost step from rounding after thousands


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)).to(DTYPE)


def batch(step):
    numbers = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 8, generator=numbers, dtype=DTYPE)
    return x, (x @ torch.ones(8, 4, dtype=DTYPE)).sin()


def optimizer_of(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


class Faults:
    """What happens to devices of which the others must go on: one at a time.

    Parameters
    ----------
    agents
        All processes.
    names
        Of these.
    seed
        Of what happens when.
    """

    def __init__(self, agents, names, seed):
        self._agents, self._names = agents, names
        self._random = random.Random(seed)
        self.seen = Counter()

    def go_on(self, stop):
        """Until it is told to stop."""
        while not stop.wait(self._random.uniform(*FAULT_S)):
            fault = self._random.choice((self.kill, self.leave, self.freeze, self.lose_worker))
            fault(self._random.choice(self._names), stop)
            self.seen[fault.__name__] += 1

    def kill(self, name, stop):
        self._agents.kill(name)
        stop.wait(self._random.uniform(0, 2))
        self._agents.restart(name)

    def leave(self, name, stop):
        self._agents.stop(name)
        self._agents.restart(name)

    def freeze(self, name, stop):
        self._agents.freeze(name)
        stop.wait(self._random.uniform(*FREEZE_S))
        self._agents.thaw(name)

    def lose_worker(self, name, stop):
        for worker in self._agents.workers(name):
            with suppress(psutil.NoSuchProcess):
                worker.kill()


def batches(stop):
    """One after the other, paced, until it is told to stop."""
    for step in count():
        if stop.wait(PACE_S):
            return
        yield batch(step)


def asked(run, net, stop):
    """Requests of ever other rows, one after the other; how many were answered rightly."""
    number = 0
    while not stop.wait(PACE_S):
        x, _ = batch(-1 - number)
        x = x[: 1 + number % BATCH]
        with torch.no_grad():
            assert torch.allclose(run(x), net(x), atol=1e-12), f"request {number}"
        number += 1
    return number


def trained_alone(n_steps):
    net, losses = made(), []
    optimizer = optimizer_of(net.parameters())
    for step in range(n_steps):
        x, y = batch(step)
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return net, losses


@pytest.mark.long
@pytest.mark.timeout(SOAK_S + 10 * TIMEOUT_S)
def test_every_step_and_every_answer_is_accounted_for(record_property):
    net, (x, y) = made(), batch(0)
    mse = nn.functional.mse_loss
    model = potluck.Model.from_torch(net, x, loss=mse, example_targets=y)
    stop, stop_faults = threading.Event(), threading.Event()
    with potluck.Home.local(6) as home, ThreadPoolExecutor(4) as pool:
        agents, names = agents_of(home), list(home.devices)
        a, b, c, d, e, f = names
        trains = make_plan(model, ((a,), (ROWS,)), ((b, c), (2, 2)), micro_batch=ROWS)
        answers = make_plan(
            model, ((d, e), (2, 2)), ((f,), (ROWS,)), micro_batch=ROWS, training=False
        )
        training = home.deploy(trains, model, optimizer=potluck.SGD(0.05, momentum=0.9)).wait()
        answering = home.deploy(answers, model).wait()
        of_training, of_answers = Faults(agents, names[:3], 0), Faults(agents, names[3:], 1)
        faults = [pool.submit(each.go_on, stop_faults) for each in (of_training, of_answers)]
        requests = pool.submit(asked, answering, made(), stop)
        fit = training.fit(batches(stop))
        until_s = time.monotonic() + SOAK_S
        while time.monotonic() < until_s and not (fit.done or requests.done()):
            time.sleep(1.0)
        stop_faults.set()
        for fault in faults:
            fault.result(TIMEOUT_S)
        stop.set()
        n_answers = requests.result(TIMEOUT_S)
        history = fit.wait()
        alone, losses = trained_alone(len(history.losses))
        seen = of_training.seen + of_answers.seen
        record_property("soak", f"{len(losses)} steps, {n_answers} answers, {dict(seen)}")
        assert history.losses == pytest.approx(losses, rel=1e-9)
        state = training.state_dict()
        for name, tensor in alone.state_dict().items():
            assert torch.allclose(state[name], tensor, rtol=1e-9, atol=1e-12)
        assert training.step == len(losses) > 0
        assert n_answers > 0
        assert seen.total() > 0
        training.close()
        answering.close()
        started = [psutil.Process(agents.process(name).pid) for name in names]
        started += [worker for name in names for worker in agents.workers(name)]
    _, left = psutil.wait_procs(started, timeout=TIMEOUT_S)
    assert left == []
