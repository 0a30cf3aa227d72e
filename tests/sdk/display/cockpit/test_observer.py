"""A home in memory watched: what a page holds, and what its clicks do to a run that trains."""

import threading

import pytest

import potluck
from potluck.display.cockpit import watch
from potluck.display.cockpit.frames import FrameReader
from potluck.display.cockpit.plan_sections import name_of
from potluck.display.cockpit.static_picture import still
from potluck.errors import UserError
from potluck.records import Stage
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
ROWS, LONG_S = 8, 60.0


class PageOfTest:
    """What a browser holds; `until` waits for the frame that shows something."""

    def __init__(self):
        self.reader, self.news = FrameReader(), threading.Condition()

    def __call__(self, frame):
        with self.news:
            self.reader.take(frame)
            self.news.notify_all()

    @property
    def sections(self):
        return self.reader.sections

    @property
    def words(self):
        return [event["words"] for event in self.reader.texts.get("events", {}).values()]

    def until(self, holds):
        with self.news:
            assert self.news.wait_for(lambda: holds(self), LONG_S), (self.sections, self.words)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *[m for _ in range(4) for m in (torch.nn.Linear(12, 12), torch.nn.Tanh())]
    )


def data(n=6):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(ROWS, 12, generator=generator), torch.randn(ROWS, 12, generator=generator))
        for _ in range(n)
    ]


def modelled():
    x, y = data(1)[0]
    return potluck.Model.from_torch(
        network(), x, loss=torch.nn.MSELoss(), example_targets=y, name="net"
    )


@pytest.fixture(scope="module")
def watched():
    """A home, its model's profile, and plans of the same micro-batches."""
    torch.set_num_threads(1)
    with memory_home(3) as home:
        model = modelled()
        profile = home.profile(model, rows=(4, 8), repeats=1).wait()
        workload = potluck.Training(batch=ROWS, micro_batch=4)
        yield home, model, potluck.plan(profile, workload, budget_s=0.5)


@pytest.fixture
def page(watched):
    watching, page = watch(watched[0]), PageOfTest()
    page.watching = watching
    watching.show(page)
    yield page
    watching.close()


def by_hand(plan, n_layers, *names):
    cuts = [round(i * n_layers / len(names)) for i in range(len(names) + 1)]
    stages = tuple(
        Stage(start=a, stop=b, devices=(name,), shares=(plan.micro_batch,), warm_up=2)
        for name, a, b in zip(names, cuts, cuts[1:], strict=False)
    )
    return potluck.Plan(
        planner="by hand", model="net", stages=stages, micro_batch=4, n_micro_batches=2
    )


@pytest.mark.long
def test_a_page_sees_the_home_before_anything_runs(watched, page):
    page.until(lambda p: len(p.sections.get("devices", {})) == 3)
    assert page.sections["run"] == {}
    assert [d["status"] for d in page.sections["devices"].values()] == ["ready"] * 3


def test_a_click_switches_a_run_that_trains_and_losses_stay_what_they_are(watched, page):
    home, model, plans = watched
    n_layers = plans.best.stages[-1].stop
    begun = by_hand(plans.best, n_layers, "local-1", "local-2")
    alone = home.deploy(begun, model, seed=3).wait()
    expected = alone.fit(data(), epochs=20, adapt=False).wait().losses
    alone.close()
    run = home.deploy(begun, model, seed=3).wait()
    page.until(lambda p: sum(not q["here"] for q in p.sections.get("plans", {}).values()) > 0)
    other = next(key for key, plan in page.sections["plans"].items() if not plan["here"])
    clicked = threading.Event()

    def click(step, loss):
        if step == 20:
            page.watching.clicked({"ask": "preview", "name": other})
            page.watching.clicked({"ask": "go", "name": other})
            clicked.set()

    losses = run.fit(data(), epochs=20, adapt=False, on_step=click).wait().losses
    assert clicked.is_set()
    page.until(lambda p: any("switched by a click" in words for words in p.words))
    assert name_of(run.plan) == other
    # sums over replicas may come in another order
    assert losses == pytest.approx(expected, rel=1e-5)
    page.until(lambda p: p.sections["plans"][other]["here"])
    run.close()


@pytest.mark.long
def test_a_slider_plans_again_in_the_background(watched, page):
    home, model, plans = watched
    run = home.deploy(plans.best, model).wait()
    page.until(lambda p: len(p.sections.get("plans", {})) > 1)
    page.watching.clicked({"ask": "limits", "latency_s": 1e-9})
    page.until(lambda p: p.sections.get("no_plan"))
    page.watching.clicked({"ask": "limits"})
    page.until(lambda p: p.sections["no_plan"] == {})
    run.close()


@pytest.mark.long
def test_an_imagined_home_is_planned_for(watched, page):
    home, model, plans = watched
    run = home.deploy(plans.best, model).wait()
    page.until(lambda p: p.sections.get("run"))
    page.watching.clicked({"ask": "imagine", "without": ["local-1"], "added": ["raspberry-pi-5"]})
    page.until(lambda p: p.sections.get("imagined_plans"))
    used = {name for p in page.sections["imagined_plans"].values() for name in p["devices"]}
    assert "local-1" not in used
    page.watching.clicked({"ask": "imagine", "without": ["nobody"]})
    page.until(lambda p: "nobody" in p.sections["imagined"].get("words", ""))
    run.close()


def test_who_may_only_look_cannot_act(page):
    page.watching.clicked({"ask": "hello"}, may_act=False)
    for content in ({"ask": "go", "name": "p"}, {"ask": "pair", "device": "a", "code": "1"}):
        with pytest.raises(UserError):
            page.watching.clicked(content, may_act=False)


def test_a_late_page_holds_what_an_early_one_holds(watched, page):
    late = PageOfTest()
    page.until(lambda p: p.sections.get("devices"))
    leave = page.watching.show(late)
    late.until(lambda p: p.sections.get("devices"))
    assert late.sections["devices"].keys() == page.sections["devices"].keys()
    leave()


def test_a_view_that_breaks_disturbs_nobody(watched, page):
    calls = []

    def broken(frame):
        calls.append(frame)
        if len(calls) > 1:
            raise OSError("the browser has gone")

    page.watching.show(broken)
    page.watching.clicked({"ask": "limits", "latency_s": 5.0})
    page.until(lambda p: p.sections.get("limits") == {"latency_s": 5.0})


def test_the_end_of_a_home_is_the_end_of_its_cockpit():
    home = memory_home(1)
    watching, page = watch(home), PageOfTest()
    watching.show(page)
    home.close()
    page.until(lambda p: p.sections["home"]["closed"])
    assert not page.sections["devices"]["local-1"].get("lit")


def test_a_picture_lasts(watched, page):
    home, model, plans = watched
    run = home.deploy(plans.best, model).wait()
    run.fit(data()).wait()
    page.until(lambda p: p.reader.rows.get("losses") and p.reader.rows.get("tasks"))
    picture = still(page.watching.machine).standalone()
    assert "potluck cockpit: net on 3 devices" in picture
    assert "<script" not in picture
    run.close()
