"""What the cockpit costs: a training that is watched against one that is not, a browser that shows
it, and the first sign after a click; bytes on the way, and an hour's events in kernel and tab.

Watched and unwatched stretches of one fit take turns. The browser is a real Chromium (playwright)
over the page of `potluck watch`; where none is, its figures are left out, and a note says so.
"""

import shutil
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result

if TYPE_CHECKING:
    from potluck.display.cockpit.observation import CockpitObservation
    from potluck.home import Home
    from potluck.run.run import Run

SETTINGS: Mapping[str, float] = {
    "devices": 4,
    "width": 256,
    "rows": 64,
    "rounds": 200,
    "round_s": 0.5,
    "browser_s": 60,
    "hour_s": 3600,
    "crowd_s": 60,
}
GOALS = {
    "training_slowdown_frac": ("<=", 0.02),
    "browser_core_frac": ("<=", 0.05),
    "first_sign_ms": ("<=", 200.0),
    "widget_kb": ("<=", 60.0),
    "kernel_growth_mb": ("<=", 1.0),
    "tab_growth_mb": ("<=", 5.0),
    "crowd_tab_mb": ("<=", 100.0),
    "crowd_longest_ms": ("<=", 200.0),
}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
FOREVER = 1_000_000


def run(settings: Mapping[str, float]) -> Result:
    """Training first, then the browser over it, then an hour that nobody waits for."""
    from potluck.home import Home

    page = files("potluck.display.cockpit").joinpath("page.js").read_bytes()
    figures: dict[str, float] = {"widget_kb": len(page) / 1e3}
    notes: list[str] = []
    with Home.local(int(settings["devices"])) as home, _training(home, settings) as (its, ends):
        figures |= _slowdown(home, ends, settings)
        with _chromium() as browser:
            if browser is not None:
                figures |= _browser(home, its, browser, settings)
    with _chromium() as browser:
        figures |= _crowd(browser, settings) | _hour(browser, settings)
        if browser is None:
            notes.append("no Chromium, or no playwright: what a browser takes was not measured")
    return Result(
        name="cockpit", figures=figures, settings=settings, goals=GOALS, notes=tuple(notes)
    )


# --- a training -----------------------------------------------------------------------------------


@contextmanager
def _training(home: "Home", settings: Mapping[str, float]) -> "Iterator[tuple[Run, list[float]]]":
    """A run that trains for ever, over all devices; and when each of its steps ended."""
    import torch

    from potluck.graph import Model
    from potluck.records import Plan, Stage

    torch.manual_seed(0)
    torch.set_num_threads(1)
    width = int(settings["width"])
    rows = int(settings["rows"])
    n = len(home.devices)
    layers = [m for _ in range(2 * n) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    x = torch.randn(rows, width)
    model = Model.from_torch(
        torch.nn.Sequential(*layers), x, loss=torch.nn.MSELoss(), example_targets=x, name="linear"
    )
    profile = home.profile(model, rows=(rows // 4,), repeats=1, watts=False).wait()
    n_layers = len(model.layers(True))
    cuts = [round(i * n_layers / n) for i in range(n + 1)]
    stages = tuple(
        Stage(start=a, stop=b, devices=(name,), shares=(rows // 4,), warm_up=n - i)
        for i, (name, (a, b)) in enumerate(zip(home.devices, pairwise(cuts), strict=True))
    )
    plan = Plan(
        planner="bench",
        model=profile.model,
        stages=stages,
        micro_batch=rows // 4,
        n_micro_batches=4,
    )
    running = home.deploy(plan, model).wait()
    ends: list[float] = []
    fitting = running.fit(
        [(x, x)] * 8,
        epochs=FOREVER,
        adapt=False,
        on_step=lambda step, loss: ends.append(time.perf_counter()),
    )
    try:
        yield running, ends
    finally:
        fitting.cancel()
        while not fitting.done:
            time.sleep(0.01)
        running.close()


def _slowdown(home: "Home", ends: list[float], settings: Mapping[str, float]) -> dict[str, float]:
    """Short watched stretches against the unwatched ones before and after each: on a full machine
    steps grow and shrink by a tenth from one second to the next.
    """
    from potluck.display.cockpit.observed_home import ObservedHome
    from potluck.display.cockpit.observer import CockpitObserver

    gate = threading.Event()

    class GatedHome(ObservedHome):
        """Is looked at only while the gate is open."""

        def observe(self) -> "CockpitObservation":
            gate.wait()
            return super().observe()

    gate.set()
    observer = CockpitObserver(GatedHome(home))
    sizes: list[int] = []
    observer.show(lambda frame: sizes.append(len(frame)))
    _stretch(ends, 5.0)  # its first plans and outlines
    watched: list[float] = []
    sizes.clear()
    gate.clear()
    alone = [_stretch(ends, settings["round_s"])]
    for _ in range(int(settings["rounds"])):
        gate.set()
        watched.append(_stretch(ends, settings["round_s"]))
        gate.clear()
        alone.append(_stretch(ends, settings["round_s"]))
    gate.set()
    observer.close()
    slower = [took / mean(around) for took, around in zip(watched, pairwise(alone), strict=True)]
    watched_s = settings["round_s"] * settings["rounds"]
    return {
        "step_s": median(alone),
        "training_slowdown_frac": mean(slower) - 1,
        "training_slowdown_error_frac": stdev(slower) / len(slower) ** 0.5,
        "updates_per_s": len(sizes) / watched_s,
        "bytes_per_s": sum(sizes) / watched_s,
    }


def _stretch(ends: list[float], seconds: float) -> float:
    """Seconds of a step on average, of those that end within so long."""
    first = len(ends)
    time.sleep(seconds)
    while len(ends) < first + 2:
        time.sleep(0.01)
    return (ends[-1] - ends[first]) / (len(ends) - 1 - first)


# --- a browser ------------------------------------------------------------------------------------


@contextmanager
def _chromium() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=path, args=FLAGS)
        yield launched
        launched.close()


CLICK = """async () => {
  const root = document.querySelector("#cockpit").shadowRoot, note = root.querySelector(".note");
  const point = [...root.querySelectorAll(".pt")].find(p => !p.ariaLabel.includes("you are here"));
  const begun = performance.now();
  const sign = new Promise(done => new MutationObserver(() => done(performance.now() - begun))
    .observe(root, { subtree: true, childList: true, characterData: true, attributes: true }));
  point.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  return await sign;
}"""


def _browser(
    home: "Home", running: "Run", browser: Any, settings: Mapping[str, float]
) -> dict[str, float]:
    from potluck.display.cockpit import watch
    from potluck.display.cockpit.server import PageServer

    watching = watch(home, running)
    server = PageServer(watching)
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.goto(server.url)
    page.locator(".pt").nth(1).wait_for()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _busy_s(session)
    begin_s = time.perf_counter()
    page.wait_for_timeout(1e3 * settings["browser_s"])
    spent_s, whole_s = _busy_s(session) - before, time.perf_counter() - begin_s
    signs = [float(page.evaluate(CLICK)) for _ in range(9)]
    page.close()
    server.close()
    watching.close()
    return {"browser_core_frac": spent_s / whole_s, "first_sign_ms": median(signs)}


def _busy_s(session: Any) -> float:
    """Processor time of the page's main thread so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


# --- a crowd --------------------------------------------------------------------------------------

CROWD = 200  # devices
CROWD_EVENTS = 10_000
LONG_TASKS = """() => { window.longest = 0; window.drawn = 0;
  new PerformanceObserver(found => found.getEntries().forEach(e => {
    window.longest = Math.max(window.longest, e.duration); })).observe({ type: "longtask" });
  const count = () => { window.drawn += 1; requestAnimationFrame(count); }; count(); }"""


def _crowd(browser: Any, settings: Mapping[str, float]) -> dict[str, float]:
    """Ten looks a second at 200 devices, and 10,000 events: whether the page stays smooth.

    `crowd_longest_ms`: the longest that its main thread was busy at a stretch (50 ms or less: 0).
    """
    from potluck.display.cockpit.server import PageServer

    if browser is None:
        return {}
    played, ticks = _PlayedObserver(CROWD), int(10 * settings["crowd_s"])
    server = PageServer(played)  # type: ignore[arg-type]
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(server.url)
    page.locator(".potluck-cockpit").wait_for()
    played.look()
    page.wait_for_timeout(2000)  # the first drawing of all cards is no update
    page.evaluate(LONG_TASKS)
    begin_s = time.perf_counter()
    for number in range(ticks):
        played.say(CROWD_EVENTS * (number + 1) // ticks)
        played.look()
        page.wait_for_timeout(max(0.0, 1e3 * (begin_s + 0.1 * (number + 1) - time.perf_counter())))
    seconds = time.perf_counter() - begin_s
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    figures = {
        "crowd_longest_ms": float(page.evaluate("window.longest")),
        "crowd_frames_per_s": page.evaluate("window.drawn") / seconds,
        "crowd_tab_mb": _heap_bytes(session) / 1e6,
    }
    page.close()
    server.close()
    return figures


# --- an hour --------------------------------------------------------------------------------------


class _PlayedObserver:
    """Stands for what looks at a home: made-up looks, as frames for those who show them."""

    def __init__(self, n_devices: int = 4) -> None:
        from potluck.display.cockpit.frames import Frames
        from potluck.display.cockpit.machine import CockpitMachine

        self._machine = CockpitMachine()
        self._frames = Frames()
        self._number = 0
        self._n_devices = n_devices
        self._views: list[Any] = []
        self.n_bytes = 0

    def show(self, view: Any) -> Any:
        """As `Watching.show`."""
        view(self._frames.full(self._machine.state))
        self._views.append(view)
        return lambda: self._views.remove(view)

    def say(self, n_events: int) -> None:
        """So many events in all by now."""
        log = self._machine.state.events
        for number in range(log.end, n_events):
            log.add({"at": 0.1 * self._number, "kind": "said", "words": f"event {number}"})

    def look(self) -> None:
        """A tenth of a second more."""
        from potluck.display.cockpit.machine import HomeObserved

        state, number = self._machine.state, self._number
        seen = _observation(number, self._n_devices)
        self._machine.handle(HomeObserved(observation=seen), 0.1 * number)
        frame = self._frames.change(state) if number % 20 else self._frames.full(state)
        self._number += 1
        self.n_bytes += len(frame or b"")
        for view in self._views if frame else ():
            view(frame)


def _hour(browser: Any, settings: Mapping[str, float]) -> dict[str, float]:
    """Ten looks a second for an hour, as fast as they go: a home that trains, comes and goes.

    Growth is that of the second half.
    """
    from potluck.display.cockpit.server import PageServer

    played = _PlayedObserver()
    server = PageServer(played)  # type: ignore[arg-type]
    session = None
    if browser is not None:
        page = browser.new_page()
        page.goto(server.url)
        page.locator(".potluck-cockpit").wait_for()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
    tracemalloc.start()
    used = []
    for _ in range(2):
        for number in range(int(5 * settings["hour_s"])):
            played.look()
            if session is not None and number % 20 == 0:
                page.wait_for_timeout(10)  # the page keeps up
        used.append((tracemalloc.get_traced_memory()[0], _heap_bytes(session)))
    tracemalloc.stop()
    server.close()
    grown = {"kernel_growth_mb": (used[1][0] - used[0][0]) / 1e6}
    if session is not None:
        page.close()
        grown |= {"tab_growth_mb": (used[1][1] - used[0][1]) / 1e6, "tab_mb": used[1][1] / 1e6}
    return grown | {"hour_bytes_per_s": played.n_bytes / settings["hour_s"]}


def _heap_bytes(session: Any) -> float:
    """What the page's scripts hold."""
    if session is None:
        return 0.0
    session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "JSHeapUsedSize"))


def _observation(number: int, n_devices: int) -> "CockpitObservation":
    """The devices at the tenth of a second `number`; one comes and goes, steps take a second."""
    from potluck.display.cockpit.observation import CockpitObservation, RunObservation
    from potluck.records import Event, Plan, Stage, Trace
    from potluck.run.history import History
    from potluck.sessions.events import Session
    from potluck.sessions.members import Member
    from potluck_wire.messages import Reading

    names = [f"device-{i}" for i in range(n_devices)]
    present = [name != "device-3" or number // 50 % 2 == 0 for name in names]
    members = tuple(
        Member(
            name=name,
            key="k",
            session=Session(device=name, name=name, version=(1, 8), capability={}) if on else None,
            reading=Reading(at_s=float(number // 10), watts=10.0 + number % 7),
        )
        for name, on in zip(names, present, strict=True)
    )
    stage = Stage(start=0, stop=4, devices=("device-0",), shares=(8,))
    plan = Plan(planner="bench", model="net", stages=(stage,), micro_batch=8)
    step = number // 10
    losses = tuple(1.0 / (1 + i % 9) for i in range(step)) if number % 10 == 0 else (1.0,) * step
    trace = Trace(
        source="measured",
        step_s=(1.0,),
        events=tuple(
            Event(
                device=name, lane="compute", start_s=0.1 * i, stop_s=0.1 * i + 0.05, label=f"0F{i}"
            )
            for name in names[:4]
            for i in range(8)
        ),
    )
    run = RunObservation(
        plan=plan,
        n_done=step,
        history=History(losses=losses, step_s=(1.0,) * step),
        is_training=True,
        step_s=(1.0,),
        latest=trace if number % 10 == 0 else None,
        latest_step=step,
        last_s=0.0,
    )
    return replace(CockpitObservation(), members=members, run=run)
