"""Plans of a home that is only imagined, live: what a page shows of them, what its clicks change,
and the same in a real browser.
"""

import time

import pytest

import potluck
from potluck.display.cockpit.observed_plans import ObservedPlans
from potluck.display.cockpit.observer import CockpitObserver
from potluck.display.cockpit.plan_sections import name_of
from potluck.display.cockpit.server import PageServer
from potluck.display.cockpit.static_picture import still
from potluck.errors import UserError

WORKLOAD = potluck.Training(batch=32)
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def planned():
    profile = potluck.estimate("family", "efficientnet-b1", max_layers=8)
    return profile, potluck.plan(profile, WORKLOAD, budget_s=1.0)


@pytest.fixture
def observer(planned):
    profile, plans = planned
    made = CockpitObserver(ObservedPlans(profile, WORKLOAD, plans.best), tuple(plans))
    yield made
    made.close()


def rows_of(observer):
    """The rows of the task stream, as they are kept."""
    return observer.machine.state.tasks.since(0)[1]


@pytest.mark.long
def test_devices_layers_memory_and_a_simulated_step_are_shown(planned, observer):
    profile, plans = planned
    seen = observer.machine.state.sections
    assert seen["run"]["state"] == "imagined"
    assert [*seen["devices"]] == [device.name for device in profile.devices]
    assert all(shown["status"] == "imagined" for shown in seen["devices"].values())
    for name, used in plans.best.peak_bytes.items():
        assert seen["devices"][name]["used"] == used
        assert seen["devices"][name]["layers"] == [
            [stage.start, stage.stop] for stage in plans.best.stages if name in stage.devices
        ]
    # a step's lanes end when the step does
    assert max(row[4] for row in rows_of(observer)) <= plans.best.latency_s * 1.5
    assert seen["run"]["step_s"] == pytest.approx(plans.best.latency_s, rel=0.05)
    assert still(observer.machine).title.startswith("potluck cockpit: efficientnet-b1 on 4 devices")
    assert len(observer.machine.state.events) == 0


def test_looking_again_shows_the_same_step_once(observer):
    before = observer.machine.state.tasks.end
    for _ in range(3):
        observer.look()
    assert observer.machine.state.tasks.end == before


def test_a_click_shows_another_plan_and_its_step(planned, observer):
    _, plans = planned
    other = next(plan for plan in plans if len(plan.devices) != len(plans.best.devices))
    before = observer.machine.state.tasks.end
    observer.clicked({"ask": "preview", "name": name_of(other)})
    observer.clicked({"ask": "go", "name": name_of(other)})
    until(observer, lambda seen: seen["plans"][name_of(other)]["here"])
    assert observer.machine.state.tasks.end > before
    shown = observer.machine.state.sections["devices"]
    assert {name for name in shown if "layers" in shown[name]} == set(other.devices)


@pytest.mark.long
def test_slower_air_and_absent_devices_are_planned_for(observer):
    click = {"ask": "imagine", "media": {"air": 2e6}, "without": ["laptop-2"], "added": []}
    observer.clicked(click)
    until(observer, lambda seen: seen.get("imagined_plans"))
    imagined = observer.machine.state.sections["imagined_plans"].values()
    assert all("laptop-2" not in plan["devices"] for plan in imagined)


def until(observer, holds):
    """Looks until the sections are so; orders are done in threads of their own."""
    for _ in range(600):
        observer.look()
        if holds(observer.machine.state.sections):
            return
        time.sleep(0.1)
    raise AssertionError(observer.machine.state.sections)


def test_nobody_pairs_with_what_is_imagined(planned):
    profile, plans = planned
    with pytest.raises(UserError, match="phone is imagined"):
        ObservedPlans(profile, WORKLOAD, plans.best).pair("phone", "1234")


def test_what_is_no_plan_is_refused(planned):
    pytest.importorskip("anywidget")
    with pytest.raises(UserError, match=r"potluck\.Plan records"):
        planned[0].cockpit(WORKLOAD, plans=["the fast one"])


@pytest.mark.long
@pytest.mark.slow
def test_a_person_looks_at_another_plan_in_a_browser(browser, observer, shots):
    server = PageServer(observer, may_act=True)
    context = browser.new_context(viewport={"width": 1200, "height": 1100})
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(server.url)
        page.get_by_text("imagined, step").wait_for()
        page.locator(".pt:not([aria-label*='you are here'])").first.press("Enter")
        chosen = page.locator(".pt[aria-label*='you are here']").first.get_attribute("data-plan")
        page.get_by_role("button", name="Look at this plan").first.click()
        page.wait_for_function(
            """before => {
                const root = document.querySelector('#cockpit').shadowRoot;
                const here = root.querySelector(".pt[aria-label*='you are here']");
                return here && here.dataset.plan !== before;
            }""",
            arg=chosen,
        )
        page.screenshot(path=str(shots / "imagined.png"), full_page=True)
    finally:
        context.close()
        server.close()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "wish",
    [
        {"without": ["laptop-1", "laptop-2", "jetson", "phone"]},
        {"without": ["nobody"]},
        {"added": ["pyproject.toml"]},
        {"added": ["/etc/passwd"]},
        {"media": {"air": 1e-9}},
        {"media": {"no such": 1.0}},
    ],
    ids=str,
)
def test_whatever_is_imagined_is_answered(observer, wish):
    observer.clicked({"ask": "imagine", **wish})
    deadline_s = time.monotonic() + WAIT_MS / 1e3
    sections = observer.machine.state.sections
    while sections["work"].get("imagine"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    words, found = sections["imagined"]["words"], sections["imagined_plans"]
    assert bool(words) != bool(found)
    assert "Error" not in words  # for people
    assert "No such file" not in words  # a page learns nothing of this machine's files


@pytest.mark.faults
def test_planning_that_breaks_is_told(observer, monkeypatch):
    from potluck.display.cockpit import observer as module

    def broken(*_, **__):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(module, "make_plans", broken)
    observer.clicked({"ask": "imagine", "without": ["phone"]})
    deadline_s = time.monotonic() + WAIT_MS / 1e3
    while observer.machine.state.sections["work"].get("imagine"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert "ZeroDivisionError" in observer.machine.state.sections["imagined"]["words"]
