"""`potluck plan` as its user types it: plans, variants of a home, files judged and exported, slips
explained.
"""

import json

import pytest

from potluck import cli, load_plan
from potluck.commands.plan import qoe, workload
from potluck.errors import PotluckError
from potluck.records import Inference, QoE, Training

SMALL = ["family", "bert-small", "--layers", "6"]


def output_of(capsys, *arguments, code=0):
    assert cli.main(["plan", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


@pytest.mark.long
def test_plans_and_shows_the_best_with_its_memory(capsys):
    out = output_of(capsys, *SMALL, "--train", "batch=8")
    headline, _, rest = out.partition("\n\n")
    assert "a step on laptop-1 alone, which is the fastest device." in headline
    assert rest.startswith("Plans\n")
    assert "→ 0" in out
    assert "for training of bert-small" in out
    assert "available" in out


@pytest.mark.long
def test_what_a_limit_leaves_of_the_memory_is_what_is_available(capsys, tmp_path):
    out = output_of(
        capsys,
        *SMALL,
        "--train",
        "batch=8",
        "--qoe",
        "memory.laptop-1=2GiB",
        "--html",
        tmp_path / "page.html",
    )
    assert "2.00 GiB" in next(
        line for line in out.splitlines()[::-1] if line.startswith("laptop-1")
    )
    assert "2.00 GiB" in (tmp_path / "page.html").read_text()


def test_a_device_is_added_as_those_are_connected_that_are_left_out(capsys):
    others = [word for name in ("laptop-2", "jetson", "phone") for word in ("--without", name)]
    out = output_of(
        capsys, *SMALL, "--train", "batch=8", "--with", "rtx-4060-laptop", *others, "--json"
    )
    assert {name for stage in json.loads(out)["best"]["stage"] for name in stage["devices"]} <= {
        "laptop-1",
        "rtx-4060-laptop",
    }


@pytest.mark.long
def test_explains_when_asked(capsys):
    out = output_of(capsys, *SMALL, "--train", "batch=8", "--explain")
    assert "Where the time goes" in out
    assert "What would help" in out


@pytest.mark.long
def test_prints_json_saves_text_and_writes_a_page(capsys, tmp_path):
    plan, page = tmp_path / "plan.toml", tmp_path / "page.html"
    out = output_of(
        capsys, *SMALL, "--infer", "streaming", "--json", "--save", plan, "--html", page
    )
    document = json.loads(out)
    assert document["best"] == document["plans"][0]
    loaded = load_plan(plan)
    assert (loaded.model, loaded.home, loaded.training) == ("bert-small", "family", False)
    assert loaded.latency_s == document["best"]["latency_s"]
    assert 'id="potluck-plans-' in page.read_text()


@pytest.mark.long
def test_a_saved_plan_is_judged_again_with_the_same_outcome_and_on_other_homes(capsys, tmp_path):
    plan = tmp_path / "plan.toml"
    first = json.loads(output_of(capsys, *SMALL, "--train", "batch=8", "--json", "--save", plan))[
        "best"
    ]
    again = json.loads(output_of(capsys, "judge", plan, "--json"))["best"]
    assert again["latency_s"] == first["latency_s"]
    (name,) = first["stage"][0]["devices"][:1]
    assert f"{name}: is not in this home" in output_of(
        capsys, "judge", plan, "--without", name, code=1
    )
    slow = json.loads(output_of(capsys, "judge", plan, "--medium", "air=1Mbit/s", "--json"))["best"]
    assert slow["latency_s"] >= first["latency_s"]
    assert "its home" not in output_of(capsys, "judge", plan, "--qoe", "latency=1us")
    assert "! needs" in output_of(capsys, "judge", plan, "--qoe", "latency=1us")
    assert "home 'family', not for 'smart-home-2'" in output_of(
        capsys, "judge", plan, "smart-home-2", code=1
    )
    other = output_of(capsys, "judge", plan, "--layers", "3", code=1)
    n_layers = first["n_layers"]
    assert f"{plan}: The plan's stages cover {n_layers} layers; bert-small has 3." in other
    plan.write_text(plan.read_text().replace(f", {n_layers}]", f", {n_layers - 1}]"))
    assert f"{plan}: its stages cover {n_layers - 1} layers, and the model" in output_of(
        capsys, "judge", plan, code=1
    )


@pytest.mark.long
def test_another_planner_and_all_planners_can_be_asked(capsys):
    out = output_of(capsys, *SMALL, "--train", "batch=8", "--planner", "gpipe", "--json")
    assert {plan["planner"] for plan in json.loads(out)["plans"]} == {"gpipe"}
    rows = output_of(capsys, *SMALL, "--train", "batch=8", "--planner", "all").splitlines()
    assert sum(line.lstrip("→ ")[:1].isdigit() for line in rows) >= 8


@pytest.mark.long
def test_a_home_can_be_changed_on_the_way(capsys):
    changed = ["--with", "raspberry-pi-5", "--without", "phone", "--medium", "air=50Mbit/s"]
    best = json.loads(output_of(capsys, *SMALL, "--train", "batch=8", *changed, "--json"))["best"]
    names = {
        *best.get("unused", {}),
        *(name for stage in best["stage"] for name in stage["devices"]),
    }
    assert names == {"laptop-1", "laptop-2", "jetson", "raspberry-pi-5"}
    assert "home" not in best


def test_other_planners_get_the_problem_and_their_plans_are_judged(capsys, tmp_path):
    out = output_of(capsys, "export", "pipedream", *SMALL, "--into", tmp_path)
    assert out == f"wrote 1 file to {tmp_path}\n"
    assert (tmp_path / "graph.txt").read_text().startswith("node1 -- Input0 -- ")
    output_of(capsys, "export", "metis", *SMALL, "--into", tmp_path)
    assert {"hostfile", "clusterfile.json", "README.txt", "profile"} <= {
        path.name for path in tmp_path.iterdir()
    }
    (tmp_path / "printed").write_text("(0, 3) 0.1 1\n(3, 6) 0.1 1\n")
    best = json.loads(output_of(capsys, "judge", tmp_path / "printed", *SMALL, "--json"))["best"]
    assert [stage["layers"] for stage in best["stage"]] == [[0, 3], [3, 6]]
    assert "say which HOME and MODEL" in output_of(capsys, "judge", tmp_path / "printed", code=1)


def test_lists_what_there_is(capsys):
    assert "bert-small" in output_of(capsys, "list", "models").splitlines()
    assert {"homes", "planners"} <= set(json.loads(output_of(capsys, "list", "--json")))
    assert "asteroid" in output_of(capsys, "list")


def test_planning_ends_when_its_time_is_up(capsys):
    hasty = json.loads(output_of(capsys, *SMALL, "--infer", "batch=1", "--time", "1ms", "--json"))
    unhurried = json.loads(output_of(capsys, *SMALL, "--infer", "batch=1", "--json"))
    assert hasty["best"]["latency_s"] >= unhurried["best"]["latency_s"] * (1 - 1e-9)


@pytest.mark.few(7)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["famly", "bert-small"], "there is no home called 'famly'. Did you mean family?"),
        (["family", "bert-smal"], "there is no model called 'bert-smal'. Did you mean bert-small"),
        ([*SMALL, "--planner", "asteroids"], "there is no planner 'asteroids'"),
        ([*SMALL, "--with", "jetson-orin-nan"], "Did you mean jetson-orin-nano"),
        ([*SMALL, "--time", "0s"], "planning for 0 s with 'potluck' is not possible"),
        (
            [*SMALL, "--time", "1s", "--planner", "gpipe"],
            "planning for 1 s with 'gpipe' is not possible",
        ),
        (
            [*SMALL, "--time", "-1s"],
            "cannot read the amount '-1s': expected a number, not below zero, and a unit",
        ),
        ([*SMALL, "--train", "batch=٣"], "batch must be a whole number, got '٣'"),
        ([*SMALL, "--layers", "٣"], "--layers must be a whole number, got '٣'"),
        ([*SMALL, "--infer", "streaming=8"], "streaming is yes or no, got '8'. --infer streaming"),
        ([*SMALL, "--time", "long"], "cannot read the amount 'long'"),
        ([*SMALL, "--with", "toaster"], "there is no device called 'toaster'"),
        (
            [*SMALL, "--without", "fone"],
            "there is no device 'fone' in this home. Did you mean phone?",
        ),
        ([*SMALL, "--medium", "air"], "--medium: cannot read 'air'"),
        ([*SMALL, "--medium", "air=fast"], "cannot read the amount 'fast'"),
        ([*SMALL, "--train", "batch=0"], "batch must be above zero, got 0"),
        ([*SMALL, "--train", "batch=10,micro_batch=4"], "cannot be split into micro-batches of 4"),
        ([*SMALL, "--train", "rows=3"], "--train: nobody knows 'rows'"),
        ([*SMALL, "--infer", "micro_batch=3"], "--infer: nobody knows 'micro_batch'"),
        ([*SMALL, "--train", "batch=many"], "batch must be a whole number, got 'many'"),
        ([*SMALL, "--qoe", "speed=9"], "nobody knows the limit 'speed'"),
        (
            [*SMALL, "--qoe", "latency=5"],
            "'latency=5' has no unit. Write latency=5s or latency=5ms.",
        ),
        ([*SMALL, "--qoe", "latency=0s"], "QoE latency_s must be above zero"),
        (
            [*SMALL, "--qoe", "memory.fone=2GB"],
            "A limit names the device 'fone', which is not in this home",
        ),
        (["family", "bert-small", "--layers", "0"], "--layers must be 1 or more, got 0."),
        (["list", "pets"], "there is no list of 'pets'"),
        (["judge", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory."),
        (["export", "alpa", *SMALL, "--into", "x"], "there is no export for 'alpa'"),
    ],
)
def test_every_slip_is_explained_in_one_line(capsys, arguments, text):
    err = output_of(capsys, *arguments, code=1)
    (line,) = (line for line in err.splitlines() if not line.startswith("planning "))
    assert text in line


@pytest.mark.parametrize(
    "arguments", [["family"], ["family", "a", "b"], ["judge"], ["export", "metis", *SMALL]]
)
def test_wrong_usage_exits_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", *arguments])
    assert ended.value.code == 2
    assert "potluck plan HOME MODEL" in capsys.readouterr().err


def test_what_is_asked_reads_as_typed():
    assert workload(None, None) == Training(batch=32)
    assert workload("batch=8,micro_batch=4,optimizer_copies=0", None) == Training(
        batch=8, micro_batch=4, optimizer_copies=0
    )
    halved = Training(batch=8, bfloat16_moments=True)
    assert workload("batch=8,bfloat16_moments", None) == halved
    assert workload("batch=8,bfloat16_moments=yes", None) == halved
    assert workload(None, "batch=2,streaming") == Inference(batch=2, streaming=True)
    assert workload(None, "streaming=no") == Inference(batch=1)
    limits = ["latency=500ms", "energy=20J", "energy.phone=5", "memory.phone=2GB", "lambda=10"]
    assert qoe(limits) == QoE(
        latency_s=0.5,
        energy_j=20,
        device_energy_j={"phone": 5},
        memory_bytes={"phone": 2 * 10**9},
        lambda_j_per_s=10,
    )
    with pytest.raises(PotluckError, match="needs a number of joules"):
        qoe(["energy=lots"])


@pytest.mark.long
def test_share_tells_whether_a_helper_pays(capsys, tmp_path):
    page, arguments = tmp_path / "page.html", ["share", "robot-indoors", "vgg19"]
    out = output_of(capsys, *arguments, "--at", "20MB/s", "--html", page)
    assert "One request of vgg19 on robot, helped by server" in out
    assert "20 MB/s" in out
    assert "best layer cut" in page.read_text()
    assert "has no device 'toaster'" in output_of(capsys, *arguments, "--helper", "toaster", code=1)
    assert "above zero" in output_of(capsys, *arguments, "--at", "0B/s", code=1)


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (("share", "robot-indoors", "vgg19"), "--layers", "0"),
        (("share", "robot-indoors", "vgg19"), "--with", "phone"),
        (("list", "homes"), "--train", "batch=4"),
        (SMALL, "--device", "laptop-1"),
        (SMALL, "--at", "20MB/s"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(capsys, words, option, value):
    with pytest.raises(SystemExit):
        cli.main(["plan", *words, option, value])
    assert f"{option} says nothing here" in capsys.readouterr().err
