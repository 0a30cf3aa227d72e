"""A coordinator is killed (kill -9) while it trains: seconds until the next one has done a step,
and the first one that nobody had finished before.

Three agents and two coordinators, all processes of this machine, train a small network: its steps
take about as long as messages do, so that most of what is measured is the takeover itself.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result

if TYPE_CHECKING:
    from potluck.discover.keyring import Keyring

SETTINGS: Mapping[str, float] = {"repeats": 3, "steps_before": 300}
GOALS = {"takeover_beyond_lease_s_median": ("<=", 5.0)}
FIRST = "first"
SECOND = "second"
NOTEBOOK = "notebook"
MOST_S = 120.0
EPOCHS = 2000  # of eight steps: more than are done before and after the kill
LOOK_S = 0.02


def run(settings: Mapping[str, float]) -> Result:
    """The same again, with new coordinators each time."""
    from potluck.coordinator.succession import LEASE_S

    taken = [_one(int(settings["steps_before"])) for _ in range(int(settings["repeats"]))]
    next_s, new_s = ([each[i] for each in taken] for i in range(2))
    figures = {
        "lease_s": LEASE_S,
        "takeover_s_median": median(next_s),
        "takeover_s_max": max(next_s),
        "takeover_beyond_lease_s_median": median(next_s) - LEASE_S,
        "new_step_s_median": median(new_s),
        "new_step_s_max": max(new_s),
    }
    return Result(name="takeover", figures=figures, settings=settings, goals=GOALS)


def _one(steps_before: int) -> tuple[float, float]:
    """Seconds from the kill to the next step that was finished, and to the first new one."""
    from potluck.coordinator.local_coordinator import FOLDER
    from potluck.discover.keyring import Keyring, KnownDevice
    from potluck.sessions.agent_specs import local_specs
    from potluck.sessions.local_agents import LocalAgents

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="potluck-")))
        rings = {name: Keyring(folder / name) for name in (NOTEBOOK, FIRST, SECOND)}
        keys = {name: ring.identity()[0] for name, ring in rings.items()}
        extra = tuple(f"--trust={keys[name]}:{name}" for name in (FIRST, SECOND))
        agents = LocalAgents(local_specs(3), (NOTEBOOK, keys[NOTEBOOK]), extra=extra)
        stack.callback(agents.close)
        for agent in agents.agents:
            known = KnownDevice(name=agent.name, key=agent.key, addresses=(agent.address,))
            for ring in rings.values():
                ring.remember(known)
        trusts = [f"--trust={keys[name]}" for name in (NOTEBOOK, SECOND)]
        first, place = _coordinator(stack, rings[FIRST], trusts)
        join = [f"--join={place}", f"--key={keys[FIRST]}"]
        _coordinator(stack, rings[SECOND], join)
        _hand_over(rings[NOTEBOOK], place, keys[FIRST])
        journal = _Copy(folder / SECOND / FOLDER)
        _until(lambda: journal.is_kept(keys[SECOND], steps_before))
        time.sleep(2.0)  # a state
        _until(lambda: _counts(agents.directory, keys[SECOND]))
        first.kill()
        killed_s, before = time.monotonic(), journal.n_entries()
        _until(lambda: journal.steps_since(before, keys[SECOND]) >= 1)
        next_s = time.monotonic() - killed_s
        _until(lambda: journal.is_beyond(before))
        return next_s, time.monotonic() - killed_s


def _coordinator(
    stack: ExitStack, ring: "Keyring", options: list[str]
) -> tuple["subprocess.Popen[str]", str]:
    line = [sys.executable, "-m", "potluck", "coordinate", "--state", str(ring.directory)]
    process = subprocess.Popen([*line, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.kill)
    found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
    assert found is not None
    return process, found[0]


def _hand_over(ring: "Keyring", place: str, key: str) -> None:
    import torch

    from potluck.graph import Model
    from potluck.home import Home
    from potluck.records import Plan, Stage

    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    with Home(state=ring.directory) as home:
        for known in ring.devices():
            home.trust(str(known.addresses[0]), known.key, known.name)
        model = Model.from_torch(
            net, x[:4], loss=torch.nn.functional.cross_entropy, example_targets=y[:4]
        )
        n = len(model.layers(True))
        stages = (
            Stage(start=0, stop=n // 2, devices=("local-1",), shares=(4,), warm_up=2),
            Stage(start=n // 2, stop=n, devices=("local-2",), shares=(4,), warm_up=1),
        )
        plan = Plan(
            planner="by hand",
            model=model.name,
            stages=stages,
            training=True,
            micro_batch=4,
            n_micro_batches=2,
        )
        run = home.deploy(plan, model).wait()
        run.fit(data, epochs=EPOCHS)
        _until(lambda: run.step >= 2)
        run.detach(to=place, key=key).wait()


def _counts(agents: Path, key: str) -> bool:
    """Whether devices know that this coordinator's copy is complete: else it does not take over."""
    kept = [json.loads(path.read_text()) for path in agents.glob("*/leases.json")]
    rows = [row for rows in kept for row in rows]
    latest: dict[str, Any] = max(
        rows, key=lambda row: (row["accepted_term"], row["accepted_serial"]), default={}
    )
    return key in latest.get("record", "")


class _Copy:
    """The second coordinator's journal, as it is on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _entries(self) -> list[dict[str, Any]]:
        from potluck.coordinator.journal import read_entries
        from potluck.errors import FileError

        for path in self._folder.glob("*/journal"):
            with suppress(FileError):
                return [entry for entry, _ in read_entries(path)[0]]
        return []

    def n_entries(self) -> int:
        return len(self._entries())

    def is_kept(self, key: str, n_steps: int) -> bool:
        """It has so many steps, and this coordinator is in line."""
        entries = self._entries()
        groups = [entry["group"] for entry in entries if "group" in entry]
        is_in = bool(groups) and any(seat[0] == key for seat in groups[-1]["seats"])
        return is_in and sum("step" in entry for entry in entries) >= n_steps

    def steps_since(self, before: int, key: str) -> int:
        """Steps that were finished since this coordinator acts."""
        new = self._entries()[before:]
        acts = [i for i, entry in enumerate(new) if entry.get("acts") == key]
        return sum("step" in entry for entry in new[acts[0] :]) if acts else 0

    def is_beyond(self, before: int) -> bool:
        """A step was finished that was not before."""
        steps = [entry.get("step", 0) for entry in self._entries()]
        return bool(max(steps) > max(steps[:before]))


def _until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + MOST_S
    while not is_so():
        if time.monotonic() > end_s:
            raise TimeoutError(f"nothing has come of it in {MOST_S:.0f} s")
        time.sleep(LOOK_S)
