"""The README is true: every snippet and command in it runs, and says what it is said to say."""

import argparse
import importlib
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.timeouts import TIMEOUT_S

from potluck import cli
from potluck.bench import harness
from potluck.commands import bench
from potluck.optional_packages import EXTRAS
from potluck_agent.cli import arguments
from potluck_agent.worker.arrays import backends as of_agent
from potluck_wire.install_hints import install

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
LINES = re.findall(r"^    (potluck .*?)(?:\s+#.*| {3,}.*)?$", TEXT, re.MULTILINE)
# named in a sentence, not to be typed
PARTIAL = {"potluck bench", "potluck agent --help", "potluck --help"}
INLINE = [
    words
    for words in re.findall(r"`(potluck [^`]+)`", TEXT)
    if "NAME" not in words and words not in PARTIAL
]
COMMANDS = sorted({line.partition(" # ")[0].strip() for line in (*LINES, *INLINE)})


def arguments_of(command):
    return shlex.split(command)[1:]


def commands(*words):
    """Those that begin with these words, as pytest parameters."""
    found = [command for command in COMMANDS if command.split()[1 : 1 + len(words)] == list(words)]
    assert found, f"the README has no potluck {' '.join(words)}"
    return found


@contextmanager
def a_device(name, folder):
    """A device as in the README: announced, with a code; its state is its own."""
    line = [sys.executable, "-m", "potluck_agent", "start", "--pair", "--json", "--name", name]
    line += ["--bind", "127.0.0.1", "--port", "0", "--state", str(folder), "--memory", "256Mi"]
    line += [
        "--threads",
        "1",
        "--device",
        "cpu",
        "--backends",
        "onnxruntime",
    ]  # it computes nothing
    process = subprocess.Popen(
        [*line, "--parent-pid", str(os.getpid())], stdout=subprocess.PIPE, text=True
    )
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("POTLUCK_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def snippet(words):
    (found,) = (text for text in SNIPPETS if words in text)
    return found


def test_the_eight_lines_train():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    images, labels = torch.randn(192, 1, 8, 8), torch.randint(0, 10, (192,))
    data = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=64)
    before = net[1].weight.detach().clone()
    names = {"net": net, "images": images, "labels": labels, "loader": loader}
    text = snippet("run.fit(loader")
    assert len(text.strip().splitlines()) <= 9
    try:
        run_python(text, names)
        assert names["run"].step == 6
        assert not torch.equal(net[1].weight, before)
    finally:
        names["home"].close()


@pytest.mark.long  # five agents beside other tests: too much for two cores
def test_a_home_of_the_library_is_played_and_profiled():
    names = {}
    run_python("import potluck\n" + snippet("smart-home-2"), names)
    import potluck

    with names["home"] as home:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
        )
        x, y = torch.randn(4, 64), torch.randint(0, 10, (4,))
        model = potluck.Model.from_torch(
            net, x, loss=torch.nn.CrossEntropyLoss(), example_targets=y
        )
        assert home.profile(model, rows=(4, 16), repeats=2).wait().devices


def test_a_device_is_discovered_and_paired(tmp_path):
    name = f"jetson-{secrets.token_hex(4)}"  # others on this network may test the same
    with a_device(name, tmp_path / name) as ready:
        import potluck
        from potluck.discover.mdns import browse

        # it looks for a free name before it says that it is there: nobody types so fast
        assert name in browse(TIMEOUT_S, enough=lambda found: name in found)
        text = snippet("home.pair(").replace('"4829 1305"', repr(ready["code"]))
        text = text.replace('"jetson"', repr(name))
        names = {"potluck": potluck}
        run_python(text, names)
        with names["home"] as home:
            assert home.devices[name].status == "ready"


@pytest.mark.slow
def test_a_request_is_shared():
    import potluck

    with potluck.Home.local(2, extra=("--backends", "onnxruntime")) as home:
        net, image = (
            torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()),
            torch.randn(1, 3, 16, 16),
        )
        text = snippet("accelerate(").replace(
            'helper=home["desktop"]', 'helper=home["local-2"], device=home["local-1"]'
        )
        names = {"potluck": potluck, "home": home, "net": net, "image": image}
        run_python(text, names)
        assert torch.allclose(names["y"], net(image), atol=1e-5)
        names["fast"].close()


def run_python(text, names):
    code = compile(text, "README.md", "exec")
    exec(code, names)


def light(words):
    """What a command prints where nothing but the light install is there."""
    without = (
        f"import sys; sys.modules |= dict.fromkeys({sorted(EXTRAS)}); from potluck import cli; "
    )
    line = [sys.executable, "-c", f"{without}sys.exit(cli.main({words}))"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("command", [c for c in commands("plan") if c.split()[2] != "share"])
def test_planning_examples_plan_for_several_devices_with_the_light_install(command):
    """As documents; what a table of plans looks like is tested where that is made."""
    words = [word for word in arguments_of(command) if word != "--explain"]
    if words[1] == "list":
        assert light(words)
        return
    best = json.loads(light([*words, "--json"]))["best"]
    assert len({device for stage in best["stage"] for device in stage["devices"]}) > 1


# the same module explains in each of its own tests
@pytest.mark.long
@pytest.mark.parametrize("command", [c for c in commands("plan") if c.split()[2] != "share"])
def test_planning_examples_are_shown_and_explained_with_the_light_install(command):
    assert light(arguments_of(command))


@pytest.mark.parametrize("command", commands("plan", "share"))
def test_what_is_to_be_shared_is_shown(command):
    assert cli.main(arguments_of(command)) == 0


@pytest.mark.parametrize("command", commands("agent"))
def test_commands_of_the_agent_are_understood(command):
    words = arguments_of(command)[1:]
    arguments.read(words)


@pytest.mark.parametrize("command", commands("bench"))
def test_benches_and_their_settings_exist(command):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parsed = parser.parse_args(arguments_of(command)[1:])
    settings = importlib.import_module(f"potluck.bench.{parsed.name}").SETTINGS
    assert {harness.parse_setting(text)[0] for text in parsed.set} <= set(settings)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.split()[1] not in ("plan", "agent", "bench")]
)
def test_other_commands_exist(command, capsys):
    words = arguments_of(command)
    with pytest.raises(SystemExit) as ended:
        cli.main([words[0], "--help"])
    assert ended.value.code == 0
    assert {word for word in words[1:] if word.startswith("--")} <= set(
        re.findall(r"--[a-z-]+", capsys.readouterr().out)
    )


@pytest.mark.parametrize("extra", sorted(set(re.findall(r'pip install "\.\[([a-z,]+)\]"', TEXT))))
def test_extras_exist(extra):
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extra.split(",")) <= set(known)


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values()) | {"nvidia", "torch"}))
def test_what_errors_say_to_install_is_what_the_readme_says_and_exists(extra):
    test_extras_exist(extra)
    assert install(extra) == of_agent.install(extra)
    assert re.match(r'pip install "\.\[([a-z,]+)\]"', install(extra))[1] == extra


def test_nobody_is_told_to_get_potluck_from_a_package_registry():
    """There it is not: what works is `pip install ".[EXTRA]"` in its folder."""
    folders = [ROOT / name for name in ("sdk", "device_agent", "notebooks", "profiles")]
    pages = [
        path
        for folder in folders
        for kind in ("py", "md", "ipynb")
        for path in folder.rglob(f"*.{kind}")
    ]
    wrong = re.compile(r"pip3? install [^\n`]*?\bpotluck(?!['’]s folder)\b|['\"`]potluck\[")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in [ROOT / "README.md", *pages]
        for line in path.read_text(encoding="utf-8").splitlines()
        if wrong.search(line)
    ]
    assert not found
