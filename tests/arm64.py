"""The agent, the wire and the light SDK on an ARM processor (aarch64), played by QEMU's user mode.

`make test-arm`, by hand. It fetches QEMU and an ARM Python with `apt-get` and `dpkg-deb` (nothing
is installed, no root is needed; the sources are those of this Debian), and the ARM wheels of what
an agent needs with pip, by the configuration that both have; some 500 MB in build/arm64. Then a
notebook of this machine pairs with an agent there and has a request answered, and the light SDK
there pairs with it and plans. With QEMU 7.2 onnxruntime 1.32 ends with a segmentation fault, so an
older one answers.

`make test-arm ARGS=--torch` trains there, too. The registry's ARM wheel of torch is one for CUDA,
so that is 4 GB more, and QEMU takes a minute or more to load it. QEMU 7.2 cannot: it is the one of
Debian 13 then, with which onnxruntime ends with a segmentation fault.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "arm64"
PACKAGES = ("python3", "libstdc++6", "libgomp1")
EMULATOR, NEWER_EMULATOR = "qemu-user-static", "qemu-user"
DEBIAN_13 = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
TORCH = ("torch==2.13.0", "safetensors>=0.5")
WHEELS = (
    *(
        "jeepney>=0.8",
        "msgpack>=1.2.1",
        "psutil>=6",
        "pyzmq>=27.3",
        "spake2>=0.9",
        "zeroconf>=0.150",
    ),
    *("numpy>=1.26", "onnx>=1.17", "onnxruntime==1.27.0"),
)
PYTHON, NEWER_PYTHON = BUILD / "python", BUILD / "newer-python"
PATHS = BUILD / "root/usr/lib/python3/dist-packages"
# nothing is tried, which would load torch more than once, and nothing that is slow counts as stuck
PATIENT = ("--threads", "1", "--device", "cpu", "--hang", "1800")
READY_S, ANSWER_S = 60, 1800


def main() -> int:
    """0 where everything held."""
    trains = sys.argv[1:] == ["--torch"]
    missing = [tool for tool in ("apt-get", "dpkg-deb") if not shutil.which(tool)]
    if missing or not Path("/etc/debian_version").exists():
        say(f"this needs a Debian with {' and '.join(missing or ['apt sources'])}")
        return 2
    prepare()
    if trains:
        prepare_torch()
    machine = out(PYTHON, "-c", "import platform; print(platform.machine())").strip()
    expect("the interpreter", machine, "aarch64")
    for what in (request, light):  # a code pairs one notebook
        with tempfile.TemporaryDirectory() as folder, agent(Path(folder) / "agent") as ready:
            what(Path(folder), ready)
    if trains:
        options = ("--backends", "torch", *PATIENT)
        with (
            tempfile.TemporaryDirectory() as folder,
            torch_there(),
            agent(Path(folder) / "agent", *options, python=NEWER_PYTHON) as ready,
        ):
            training(Path(folder), ready)
    say("all of it holds")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise SystemExit(f"{what}: {got!r}, expected {wanted!r}")
    say(f"ok  {what}")


def out(*line: object, **options) -> str:
    """What a command writes; it must succeed."""
    words = [str(word) for word in line]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


# --- the machine ----------------------------------------------------------------------------------


def prepare() -> None:
    """QEMU, an ARM Python and the wheels, once."""
    if (BUILD / "ready").exists():
        return
    shutil.rmtree(BUILD, ignore_errors=True)
    fetch(host_architecture(), BUILD / "host", EMULATOR, with_needed=False)
    fetch("arm64", BUILD / "root", *PACKAGES)
    write_python(PYTHON, BUILD / "host/usr/bin/qemu-aarch64-static")
    install(BUILD / "site", *WHEELS)
    PATHS.mkdir(exist_ok=True)
    # programs that it starts are played, too
    rows = [f"import sys; sys.executable = {str(PYTHON)!r}", BUILD / "site", ROOT / "sdk"]
    (PATHS / "arm64.pth").write_text("\n".join(map(str, [*rows, ROOT / "device_agent", ""])))
    (BUILD / "ready").touch()


def prepare_torch() -> None:
    """Its wheels and the newer QEMU, once."""
    if (BUILD / "torch-ready").exists():
        return
    newer = BUILD / "newer-host"
    for folder in (newer, BUILD / "torch"):
        shutil.rmtree(folder, ignore_errors=True)
    fetch(host_architecture(), newer, NEWER_EMULATOR, sources=DEBIAN_13, with_needed=False)
    write_python(NEWER_PYTHON, newer / "usr/bin/qemu-aarch64")
    install(BUILD / "torch", *TORCH)
    (BUILD / "torch-ready").touch()


def write_python(path: Path, emulator: Path) -> None:
    """The interpreter there, played by this emulator."""
    (interpreter,) = (BUILD / "root/usr/bin").glob("python3.[0-9]*[0-9]")
    path.write_text(f'#!/bin/sh\nexec {emulator} -L {BUILD}/root {interpreter} "$@"\n')
    path.chmod(0o755)


def host_architecture() -> str:
    return out("dpkg", "--print-architecture").strip()


def install(folder: Path, *wheels: str) -> None:
    """Wheels, and what they need, for the machine that is played."""
    say(f"fetching wheels of {', '.join(wheels)} ...")
    pip = (sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "--no-compile")
    out(*pip, "--only-binary=:all:", "--target", folder, *wheels)


@contextmanager
def torch_there():
    """Meanwhile every process there finds torch, and is played by the newer QEMU."""
    path = PATHS / "torch.pth"
    rows = [f"import sys; sys.executable = {str(NEWER_PYTHON)!r}", BUILD / "torch", ""]
    path.write_text("\n".join(map(str, rows)))
    try:
        yield
    finally:
        path.unlink()


def fetch(
    architecture: str, into: Path, *packages: str, sources: str = "", with_needed: bool = True
) -> None:
    """Unpack packages of these sources, or this system's, and what they need, beside this
    system.
    """
    say(f"fetching {', '.join(packages)} for {architecture} ...")
    own = into.with_name(f"apt-{architecture}-{into.name}")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (own / folder).mkdir(parents=True)
    (own / "state/status").touch()  # as if nothing were installed
    (own / "own.sources").write_text(sources)
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::State": own / "state",
        "Dir::State::status": own / "state/status",
        "Dir::Cache": own / "cache",
        **({"Dir::Etc::SourceList": "/dev/null", "Dir::Etc::SourceParts": own} if sources else {}),
    }
    apt = ("apt-get", *(f"-o{key}={value}" for key, value in options.items()), "--quiet")
    out(*apt, "update")
    if with_needed:
        out(*apt, "--yes", "--download-only", "install", *packages)
    else:
        out(*apt, "download", *packages, cwd=own / "cache/archives")
    for archive in (own / "cache/archives").glob("*.deb"):
        out("dpkg-deb", "-x", archive, into)
    shutil.rmtree(own)


# --- what is tried --------------------------------------------------------------------------------


@contextmanager
def agent(state: Path, *options: str, python: Path = PYTHON):
    """What an agent there says of itself when it is ready.

    Commands beside it do not find it: QEMU shows a process another time of its own start than it
    shows to others.
    """
    line = [python, "-m", "potluck_agent", "start", "--pair", "--no-mdns", "--name", "arm"]
    line += ["--bind", "127.0.0.1", "--port", "0", "--state", state, "--memory", "512MiB"]
    line += ["--json", "--parent-pid", str(os.getpid()), *options]
    process = subprocess.Popen([*map(str, line)], stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(process.stdout.readline())
        yield ready
    finally:
        process.terminate()
        process.wait(READY_S)
        say((state / "agent.log").read_text().rstrip())


def request(folder: Path, ready: dict) -> None:
    """A notebook here pairs with it, and its answer is that of this machine."""
    os.environ["POTLUCK_HOME"] = str(folder / "notebook")
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    import potluck

    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(8, 4)).astype("f4"), rng.normal(size=(3, 8)).astype("f4")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("x", 8), ("y", 4))
    ]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")]
    )
    file = folder / "model.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    place = f"127.0.0.1:{ready['port']}"
    with potluck.Home(peers=[place]) as home:
        home.pair(place, ready["code"])
        model = potluck.Model.from_onnx(file)
        profile = home.profile(model)
        profile.wait(ANSWER_S)
        run = home.deploy(potluck.plan(profile, potluck.Inference()).best)
        answer = run(x)
        statement = home.devices["arm"].capability
    wanted = onnxruntime.InferenceSession(file).run(None, {"x": x})[0]
    expect("a request's answer", bool(np.allclose(answer, wanted, rtol=1e-5, atol=1e-6)), True)
    expect("its processor", statement["platform"], "Linux aarch64")
    for bound in ("signals", "reading"):  # QEMU plays neither seccomp nor Landlock
        expect(f"{bound}: {statement['bounds'][bound]}", statement["bounds"][bound][:4], "not ")


def training(folder: Path, ready: dict) -> None:
    """A notebook here trains there, and the losses are those of this machine."""
    os.environ["POTLUCK_HOME"] = str(folder / "notebook")
    import torch

    import potluck

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    net.append(torch.nn.Linear(4 * 6 * 6, 3))
    loss = torch.nn.CrossEntropyLoss()
    batches = [(torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))) for _ in range(3)]
    model = potluck.Model.from_torch(
        net, batches[0][0][:2], loss=loss, example_targets=batches[0][1][:2]
    )
    place = f"127.0.0.1:{ready['port']}"
    with potluck.Home(peers=[place]) as home:
        home.pair(place, ready["code"])
        profile = home.profile(model, rows=(2, 6))
        profile.wait(ANSWER_S)
        plan = potluck.plan(profile, potluck.Training(batch=6)).best
        run = home.deploy(plan, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2))
        history = run.fit(batches, adapt=False)
        history.wait(ANSWER_S)
        losses = history.losses
    alone = torch.optim.AdamW(net.parameters(), lr=1e-2)
    wanted = []
    for x, y in batches:
        alone.zero_grad()
        found = loss(net(x), y)
        found.backward()
        alone.step()
        wanted.append(found.item())
    expect("the losses of a training", torch.allclose(*map(torch.tensor, (losses, wanted))), True)


def light(folder: Path, ready: dict) -> None:
    """The SDK without torch there pairs with it and plans."""
    environment = {**os.environ, "POTLUCK_HOME": str(folder / "light")}
    place = f"127.0.0.1:{ready['port']}"
    potluck = (PYTHON, "-m", "potluck")
    out(*potluck, "pair", place, "--code", ready["code"], env=environment)
    listed = out(*potluck, "devices", place, env=environment)
    expect("the light SDK's session with it", "ready" in listed, True)
    plan = ("plan", "family", "efficientnet-b1", "--infer", "streaming", "--json")
    local = out(sys.executable, "-m", "potluck", *plan)
    emulated = json.loads(out(*potluck, *plan, env=environment))["best"]
    expect("it plans as this machine does", emulated, json.loads(local)["best"])


if __name__ == "__main__":
    assert platform.system() == "Linux"
    sys.exit(main())
