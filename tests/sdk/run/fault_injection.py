"""Killing one process of a home at a chosen instruction: when the notebook says something, and so
many events later.

`python -m tests.sdk.run.fault_injection MOMENT AFTER LINKS` is a notebook that is killed itself, in
the middle of a switch.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from tests.sdk.lab.homes import write_home
from tests.sdk.run.test_switching import FOREVER, SPECS, A, B, C, make_data, make_model, plan_of
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import PotluckError
from potluck.testing.faults import Moment, agents_of, end_watch, watch
from potluck_wire.messages import Commit, Execute, Prepare

AGENT_SIDE = Path(__file__).parent / "killed_agent"
NAMES = A, B, C


DEPLOYING = {
    "loading": Moment(Prepare, 0),
    "committing the first plan": Moment(Commit, 0),
    "sending weights": Moment(Execute, 0, "push"),
}
TRAINING = {
    "training": Moment(Execute, 0, "train"),
    "loading the transition": Moment(Prepare, 1),
    "loading standbys": Moment(Prepare, 2),
    "going to the transition": Moment(Execute, 1, "move"),
    "fetching": Moment(Execute, 2, "fetch"),
    "training on the transition": Moment(Execute, 1, "train"),
    "following": Moment(Execute, 2, "follow"),
    "loading the new plan": Moment(Prepare, 3),
    "going over": Moment(Execute, 3, "move"),
    "committing": Moment(Commit, 3),
    "training on the new plan": Moment(Execute, 3, "train"),
}
REQUESTS = {
    "answering": Moment(Execute, 0, "infer"),
    "loading the new plan": Moment(Prepare, 1),
    "copying": Moment(Execute, 1, "move"),
    "committing": Moment(Commit, 1),
    "answering by the new plan": Moment(Execute, 1, "infer"),
}


class KillAt:
    """At `moment`, and `after` more events of its agent, `victim` ("agent" or "worker") of `device`
    is killed.
    """

    def __init__(self, home, moment, device, victim, after):
        self.device = device
        self.victim = victim
        self._agents = agents_of(home)
        self._folder, self._home = self._agents.directory / device, home
        self._order = f"{victim} {after + 1}"
        watch(home, moment, self._give_order)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.mend()

    def _give_order(self):
        """The agent must not read it half written."""
        (self._folder / "order").write_text(self._order)
        (self._folder / "order").rename(self._folder / "kill-order")

    @property
    def has_killed(self):
        return (self._folder / "killed").exists()

    def mend(self):
        """Bring back who was killed, or has died of something else."""
        end_watch(self._home)
        (self._folder / "kill-order").unlink(missing_ok=True)
        if self.has_killed:
            (self._folder / "killed").unlink()
            if self.victim == "agent":
                self._agents.process(self.device).wait(TIMEOUT_S)
        if self._agents.process(self.device).poll() is not None:
            self._agents.restart(self.device)
        # the link may not have noticed yet that it is gone
        while self.device not in self._home.devices.ready:
            try:
                self._home.devices.need([self.device])
            except PotluckError:
                continue


def open_home(links, folder):
    """Three devices, joined by user-space links or by namespaces."""
    if links == "plain":
        torch.set_num_threads(1)
        return potluck.Home.lab(SPECS)
    return potluck.Home.lab(write_home(folder, devices=NAMES), links=links)


def main(name, after, links, folder):
    """Train and switch; at the moment, and so many messages later, be gone."""
    home = open_home(links, Path(folder))
    agents = agents_of(home)
    sys.stdout.write(f"{agents.directory} {' '.join(str(agents.process(n).pid) for n in NAMES)}\n")
    sys.stdout.flush()
    watch(
        home,
        {**DEPLOYING, **TRAINING}[name],
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        after=int(after),
    )
    model = make_model()
    run = home.deploy(plan_of(model, "ab"), model).wait()
    run.fit(make_data(), epochs=FOREVER)
    run.switch(plan_of(model, "abc")).wait()
    run.fit(make_data(), epochs=FOREVER).wait()


def family_of(pids):
    """These processes and all that they have started, of those that have not ended yet."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
