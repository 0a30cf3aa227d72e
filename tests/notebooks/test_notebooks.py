"""Every notebook runs from top to bottom, by this interpreter, and leaves nobody behind.

Two of them each time: one trains and switches, one shows schedules. What the others call has tests
of its own: tests/sdk/planning, and tests/sdk/offload.
"""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 600_000
LEFT = """import psutil
print("left:", [child.name() for child in psutil.Process().children(recursive=True)])"""


def nbformat():
    """Three seconds to import: not where tests are only collected."""
    return pytest.importorskip("nbformat")


def read(path):
    return nbformat().read(path, as_version=4)


def text_of(cell):
    """All that a cell printed or displayed, as text and as HTML."""
    parts = []
    for output in cell.get("outputs", ()):
        parts += [
            output.get("text", ""),
            *(str(value) for value in output.get("data", {}).values()),
        ]
    return "\n".join(parts)


def execute(name, folder):
    """The notebook with its outputs; the kernel is this very interpreter."""
    nbclient = pytest.importorskip("nbclient")
    kernels = pytest.importorskip("ipykernel.kernelspec")
    jupyter_client = pytest.importorskip("jupyter_client")
    kernels.write_kernel_spec(str(folder / "this"))
    specs = jupyter_client.kernelspec.KernelSpecManager(
        kernel_dirs=[str(folder)], ensure_native_kernel=False
    )
    manager = jupyter_client.AsyncKernelManager(kernel_name="this", kernel_spec_manager=specs)
    notebook = read(FOLDER / name)
    notebook.cells.append(nbformat().v4.new_code_cell(LEFT))
    client = nbclient.NotebookClient(
        notebook, km=manager, timeout=300, resources={"metadata": {"path": str(FOLDER.parent)}}
    )
    client.execute()
    return notebook


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    pytest.importorskip("efficientnet_lite_pytorch")
    return execute("01_first_home.ipynb", tmp_path_factory.mktemp("kernels"))


@pytest.mark.few(2)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_valid_and_what_they_show_lasts_and_is_small(path):
    """As `sdk/docs/notebooks.py` keeps it: of this machine nothing, of widgets nothing."""
    notebook = read(path)
    nbformat().validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert path.stat().st_size < MOST_BYTES
    text = "\n".join(map(text_of, code))
    for word in ("widget-view", "Traceback", str(Path.home()), str(FOLDER.parent)):
        assert word not in text
    assert all(output.output_type != "error" for cell in code for output in cell.outputs)


@pytest.mark.long
@pytest.mark.slow
def test_the_first_home_learns_and_names_the_flower(executed):
    text = "\n".join(text_of(cell) for cell in executed.cells)
    right = next(line for line in text.splitlines() if "of the test digits are right" in line)
    assert float(right.split("%")[0]) > 80
    assert "flower.jpg: daisy" in text
    assert float(text.split("whole model on one machine: ")[1].split()[0]) < 1e-3


@pytest.mark.long
@pytest.mark.slow
def test_each_step_shows_itself_as_html(executed):
    shown = "\n".join(text_of(cell) for cell in executed.cells)
    for kind in ("members", "layers", "profile", "plans", "plan", "history", "trace"):
        assert f'id="potluck-{kind}-' in shown, kind
    assert "FloatProgress" in shown  # a live bar for each long call


@pytest.mark.long
@pytest.mark.slow
def test_a_handle_at_the_end_of_a_cell_gives_way_to_its_result(executed):
    shown = "\n".join(text_of(cell) for cell in executed.cells)
    assert 'id="potluck-progress-' not in shown


@pytest.mark.long
@pytest.mark.slow
def test_who_wants_their_laptop_back_gets_it(executed):
    (switched,) = (cell for cell in executed.cells if "run.switch(" in cell.source)
    assert "laptop" not in switched.outputs[-1]["data"]["text/plain"].replace("old-laptop", "")


@pytest.mark.long
@pytest.mark.slow
def test_closing_ends_every_agent(executed):
    assert "closed" in text_of(executed.cells[-2])
    assert "left: []" in text_of(executed.cells[-1])


@pytest.mark.long
@pytest.mark.slow
def test_four_schedules_learn_the_same_and_show_their_timelines(tmp_path):
    pytest.importorskip("sklearn")
    notebook = execute("03_schedules_and_timelines.ipynb", tmp_path)
    text = "\n".join(text_of(cell) for cell in notebook.cells)
    assert "<-- ERROR HERE" in text
    assert "the same to the last bit: True" in text
    # each picture as a part of the page, and as an image of its own: two timelines, a cockpit;
    # and that of the devices
    assert text.count("</svg>") == 3 * 2 + 1
    gain = text.split("taking turns is worth ")[1].split("%")[0]
    assert 0 < float(gain) < 50
    assert "left: []" in text_of(notebook.cells[-1])


@pytest.mark.slow
@pytest.mark.long
def test_regions_are_grouped_scheduled_and_trained_as_on_one_machine(tmp_path):
    pytest.importorskip("sklearn")
    notebook = execute("06_regions.ipynb", tmp_path)
    cells = {cell.id: text_of(cell) for cell in notebook.cells}
    assert "<- chosen" in cells["groups"]
    assert "</svg>" in cells["groups"]
    took = {
        line.split()[0]: float(line.split(" ms")[0].split()[-1]) for line in table(cells, "orders")
    }
    assert took["the"] <= took["zb-compact"] <= took["1f1b"]
    plans = {
        line.split("  ")[0]: float(line.split(" ms")[0].split()[-1])
        for line in table(cells, "plan")
    }
    assert plans["ours"] == min(plans.values())
    for what in ("a loss from one machine's", "a weight"):
        assert float(cells["train"].split(f"difference of {what}: ")[1].split()[0]) < 1e-4
    assert "left: []" in text_of(notebook.cells[-1])


def table(cells, name):
    """The lines of a cell that tell milliseconds."""
    return [line for line in cells[name].splitlines() if " ms" in line and "<" not in line]


@pytest.mark.slow
@pytest.mark.long
def test_exploring_tells_its_story_in_tables_and_numbers(tmp_path):
    explored = execute("02_explore_plans.ipynb", tmp_path)
    cells = {cell.id: text_of(cell) for cell in explored.cells}
    for name, kind in (
        ("estimate", "profile"),
        ("plan", "plans"),
        ("explain", "explanation"),
        ("limits", "plan"),
    ):
        assert f'id="potluck-{kind}-' in cells[name], name
    ours, *others = [
        float(line.split(" ms")[0].split()[-1]) for line in cells["baselines"].splitlines()
    ]
    assert ours <= min(others)
    assert int(cells["limits"].split("%")[0]) >= 0
    assert "is imagined: connected like" in cells["what-if"]
    assert "Would do (a plan was found that holds it): a latency of" in cells["impossible"]
    assert "[[stage]]" in cells["edit"]
    assert float(cells["edit"].split("step, ")[1].split()[0]) >= 1.0
    assert "left: []" in text_of(explored.cells[-1])


@pytest.mark.slow
@pytest.mark.long
def test_an_evening_is_survived_and_no_step_is_left_out(tmp_path):
    notebook = execute("05_survive_the_evening.ipynb", tmp_path)
    cells = {cell.id: text_of(cell) for cell in notebook.cells}
    text = cells["history"]
    assert "shelf: the connection to" in text
    assert "shelf is back. The run goes on with" in text
    assert "kitchen: no sign of life" in text
    assert "330 steps of 330, 330 losses" in cells["steps"]
    right = next(line for line in cells["steps"].splitlines() if "test digits" in line)
    assert float(right.split("%")[0]) > 95
    assert "goes on at step 330, and is at step 352" in cells["file"]
    assert "left: []" in text_of(notebook.cells[-1])


@pytest.mark.slow
@pytest.mark.long
def test_one_request_is_shared_while_the_air_fades(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("sklearn")
    notebook = execute("04_share_one_request.ipynb", tmp_path)
    cells = {cell.id: text_of(cell) for cell in notebook.cells}
    assert "daisy" in cells["three-lines"]
    assert float(cells["same"].split(": ")[1].split()[0]) < 1e-3
    for name in ("rows", "rows-fast"):
        assert 'id="potluck-account-' in cells[name]
        assert cells[name].count("</svg>") == 1
    assert "share-" in cells["fade"]
    assert "helped again: True" in cells["fade"]
    assert "</svg>" in cells["time"]
    seconds = {
        line[:20].strip(): float(line.split("requests, ")[1].split()[0])
        for line in cells["summary"].splitlines()
        if " J for one" in line
    }
    assert len(seconds) == 3
    text = cells["summary"].split("Soonest: ")[1].split(", by ")[0]
    assert seconds[text] == min(seconds.values())
    assert "left: []" in text_of(notebook.cells[-1])


@pytest.mark.slow
@pytest.mark.long
def test_a_home_serves_while_devices_leave_and_over_http(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("sklearn")
    pytest.importorskip("uvicorn")
    notebook = execute("08_serve_the_home.ipynb", tmp_path)
    cells = {cell.id: text_of(cell) for cell in notebook.cells}
    for name in ("serve", "afternoon"):
        assert 'id="potluck-services-' in cells[name]
    assert "It is too dark in here -> light" in cells["ask"]
    assert "flower.jpg -> daisy" in cells["ask"]
    assert float(cells["ask"].split("on one machine: ")[1].split()[0]) < 1e-3
    n_answered, n_frames = (
        cells["afternoon"].split("the camera: ")[1].split(" frames")[0].split(" of ")
    )
    assert 0 < int(n_answered) <= int(n_frames) == 192
    assert "</svg>" in cells["picture"]
    assert "phone" not in cells["elsewhere"].split("was gone:")[1].split("}")[0]
    assert "-> music" in cells["http"]
    in_time = [
        float(line.split("in time")[0].split(":")[1])
        for line in cells["scale"].splitlines()
        if "in time per second" in line
    ]
    assert len(in_time) == 4
    assert in_time[0] >= in_time[1]
    assert in_time[2] >= in_time[3]
    assert "left: []" in text_of(notebook.cells[-1])
