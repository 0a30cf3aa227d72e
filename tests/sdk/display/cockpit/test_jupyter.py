"""The cockpit in a real JupyterLab and a real Chromium: a plan clicked on while a fit is under way,
a busy kernel, a second tab, a reload, a restart, a cell run again; and what a saved notebook shows.
"""

import re
import shutil
from pathlib import Path

import pytest
from tests.sdk.display.cockpit.browser import Tab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NOTEBOOKS = sorted((Path(__file__).parents[4] / "notebooks").glob("*.ipynb"))
RUN_S = 800

HOME = """
import threading, torch, potluck
from potluck.testing.memory import memory_home
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [m for _ in range(4) for m in (torch.nn.Linear(12, 12), torch.nn.Tanh())]
net = torch.nn.Sequential(*layers)
made = torch.Generator().manual_seed(1)
data = [(torch.randn(8, 12, generator=made), torch.randn(8, 12, generator=made)) for _ in range(6)]
x, y = data[0]
loss = torch.nn.MSELoss()
model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y, name="net")
home = memory_home(3)
profile = home.profile(model, rows=(4, 8), repeats=1).wait()
plans = potluck.plan(profile, potluck.Training(batch=8, micro_batch=4), budget_s=0.5)
plan = next(plan for plan in plans if len(plan.stages) > 1)
run = home.deploy(plan, model, seed=3).wait()
go_on = threading.Event()
"""
# steps come until the plan has changed, and some after: whatever the machine's speed
FIT = """
import time
seen = []
def watched(step, loss):
    seen.append(loss)
    time.sleep(0.02)
def batches():
    left = 25
    for i in range(20_000):
        left -= run.plan is not plan
        if left < 0 or go_on.is_set():
            return
        yield data[i % 6]
fit = run.fit(batches(), on_step=watched, adapt=False)
"""
BUSY = "time.sleep(12); go_on.set()"
ANSWERED_MS = 8_000  # while that cell runs
JUDGE = """
n = len(fit.wait().losses)
alone = home.deploy(plan, model, seed=3).wait()
same = alone.fit([data[i % 6] for i in range(n)], adapt=False).wait().losses
largest = max(abs(a - b) for a, b in zip(fit.losses, same))
print("judged:", "equal" if largest < 1e-5 else largest, "after", n, "steps,", run.plan is not plan)
"""


@pytest.fixture
def opened(browser, jupyter, shots):
    """A function that writes a notebook and opens it; nothing may be asked outside."""
    contexts, tabs = [], []

    def open_it(name, *cells):
        if cells:
            jupyter.write(name, *cells)
        if not contexts:
            contexts.append(browser.new_context(viewport={"width": 1400, "height": 1200}))
        tabs.append(Tab(contexts[0], jupyter, name))
        return tabs[-1]

    yield open_it
    for number, tab in enumerate(tabs):  # for whoever looks why it failed
        tab.page.screenshot(path=str(shots / f"last-{number}.png"))
    for context in contexts:
        context.close()
    assert [url for tab in tabs for url in tab.outside] == []


def choose(tab):
    """Click a plan that is not at work, look, and go over to it."""
    other = tab.page.locator(".pt:not([aria-label*='you are here'])").first
    other.wait_for()
    named = other.get_attribute("data-plan")  # others may come before it meanwhile
    tab.page.locator(f".pt[data-plan='{named}']").first.press("Enter")
    tab.page.get_by_role("button", name="Switch to this plan").first.click()


@pytest.mark.long
def test_a_click_switches_while_a_fit_is_under_way_and_what_is_saved_is_a_picture(opened, shots):
    tab = opened("switch.ipynb", HOME, "home.cockpit()", FIT)
    tab.run_all()
    tab.wait_text("training, step")
    choose(tab)
    tab.wait_text("switched by a click to")
    tab.wait_text("after the switch a step takes")
    tab.page.locator(".potluck-cockpit").first.screenshot(path=str(shots / "switched.png"))
    tab.add_cell(JUDGE)
    tab.wait_output("judged: equal after .*, True")
    check_saved(tab)


def check_saved(tab):
    """Once saved and opened again without its kernel, a picture is in the place of the widget."""
    import nbformat
    from nbconvert import HTMLExporter

    tab.add_cell("alone.close(); run.close()")
    tab.wait_text("ended")
    tab.page.wait_for_timeout(6000)  # pictures come every five seconds
    path = tab.save()
    notebook = nbformat.read(path, as_version=4)
    body, _ = HTMLExporter().from_notebook_node(notebook)
    assert re.search(r"potluck cockpit: net on 3 devices, \d+ steps", body)
    assert body.count("<svg") >= 1
    assert path.stat().st_size < 200_000
    tab.menu("Kernel", re.compile("^Shut Down Kernel$"))
    tab.page.get_by_text("No Kernel").first.wait_for()
    tab.page.reload()
    tab.page.locator("[data-potluck-still] svg").wait_for()
    assert tab.page.locator(".potluck-cockpit").count() == 0


@pytest.mark.long
def test_a_click_while_a_cell_runs_is_answered_or_said_to_be_queued(opened):
    tab = opened("busy.ipynb", HOME, "home.cockpit()", FIT, BUSY)
    tab.run_all()
    point = tab.page.locator(".pt:not([aria-label*='you are here'])").first
    point.wait_for()
    point.focus()
    tab.page.keyboard.press("Enter")
    # JupyterLab 4.4 and newer have a thread of the kernel's for widgets; others wait for the cell
    done = tab.page.get_by_role("button", name="Switch to this plan")
    queued = tab.page.locator(".potluck-cockpit", has_text="queued, a cell is running")
    done.or_(queued).first.wait_for(timeout=ANSWERED_MS)
    done.wait_for()


@pytest.mark.long
def test_tabs_reloads_and_cells_run_again_show_the_same(opened):
    tab = opened("tabs.ipynb", HOME, "home.cockpit()", FIT)
    tab.run_all()
    tab.wait_text("training, step")
    tab.save()
    tab.page.reload()
    tab.wait_idle()
    tab.wait_text("training, step")
    second = opened("tabs.ipynb")
    second.wait_text("training, step")
    for each in (second, tab):
        choose(each) if each is second else None
        each.wait_text("switched by a click to")
    tab.add_cell("again = home.cockpit(); again")
    tab.page.locator(".potluck-cockpit").nth(1).wait_for()
    tab.add_cell("go_on.set(); home.close()")
    tab.wait_text("the home is closed")


@pytest.mark.long
def test_after_a_restart_the_page_says_that_nobody_is_there(opened, jupyter):
    tab = opened("restart.ipynb", HOME, "home.cockpit()")
    tab.run_all()
    tab.wait_text("idle, step 0")
    tab.menu("Kernel", re.compile("^Restart Kernel…$"))
    tab.page.get_by_role("button", name="Confirm Kernel Restart").click()
    tab.wait_text("The kernel is silent")
    tab.wait_idle()
    tab.run_all()
    tab.wait_text("idle, step 0")
    tab.wait_text("Live")


TABLE = """
from IPython.display import HTML
from potluck.display import html
from potluck.display.tables import Table
rows = (("2.00 s", "a"), ("30.0 ms", "b"), ("1 min 40 s", "c"))
HTML(html.of_table("x", Table(title="T", columns=(">time", "who"), rows=rows)))
"""


@pytest.mark.long
def test_tables_of_a_cell_sort_by_pointer_and_by_keyboard(opened, shots):
    tab = opened("table.ipynb", TABLE)
    tab.run_all()
    heading = tab.page.get_by_role("button", name="time")
    heading.click()
    assert whole_column(tab) == ["30.0 ms", "2.00 s", "1 min 40 s"]
    heading.focus()
    tab.page.keyboard.press("Enter")  # JupyterLab would begin to edit the cell
    assert whole_column(tab) == ["1 min 40 s", "2.00 s", "30.0 ms"]
    assert tab.page.locator(".jp-mod-editMode").count() == 0
    tab.page.screenshot(path=str(shots / "table.png"))


def whole_column(tab):
    texts = "all => all.map(e => e.textContent)"
    return tab.page.eval_on_selector_all(".potluck tbody td:first-child", texts)


@pytest.mark.long
def test_a_second_notebook_looks_and_takes_over(opened, tmp_path):
    state = str(tmp_path / "keys")
    first = opened(
        "first.ipynb", f"import potluck; home = potluck.Home(state={state!r})", "home.cockpit()"
    )
    first.run_all()
    first.wait_text("nothing runs")
    second = opened("second.ipynb", "import potluck", f"potluck.Home.look(state={state!r})")
    second.run_all()
    second.wait_text(r"To look at only: process \d+ has this home")
    second.wait_text("nothing runs")
    second.add_cell(f"mine = potluck.Home.take_over(state={state!r}, timeout_s=0.1); mine.closed")
    second.wait_output("False")
    first.wait_text(r"process \d+ took it over")
    first.add_cell("print(home)")
    first.wait_output("closed: process")
    second.add_cell("mine.close()")


LEFT = """import psutil
print("left:", psutil.Process().children(recursive=True))"""


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_runs_to_its_end_as_a_person_opens_it(path, opened, jupyter, shots):
    for needed in ("efficientnet_lite_pytorch", "sklearn", "uvicorn"):
        pytest.importorskip(needed)
    folder = jupyter.folder / "notebooks"
    shutil.copytree(path.parent, folder, dirs_exist_ok=True)
    tab = opened(path.name)
    tab.run_all()
    tab.add_cell(LEFT)
    tab.wait_output(r"left: \[\]", seconds=RUN_S)
    assert tab.page.get_by_text("Traceback (most recent call last)").count() == 0
    if ".cockpit()" in path.read_text():
        assert tab.page.locator(".potluck-cockpit").count() >= 1
    tab.page.screenshot(path=str(shots / f"{path.stem}.png"))
    assert tab.errors == []
