"""The agent, the wire and the light SDK on an ARM processor (aarch64), played by QEMU's user mode.

`make test-arm`, by hand. It fetches QEMU and an ARM Python with `apt-get` and `dpkg-deb` (nothing
is installed, no root is needed; the sources are those of this Debian), and the ARM wheels of what
an agent needs with pip, by the configuration that both have; some 500 MB in build/arm64. Then a
notebook of this machine pairs with an agent there and has a request answered, and the light SDK
there pairs with it and plans.

onnxruntime 1.32 and torch 2.13 end with a segmentation fault where QEMU 7.2 loads them, and torch
2.10 does not come to the end of a convolution: so an older onnxruntime answers.
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
EMULATOR = "qemu-user-static"
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
PYTHON = BUILD / "python"
READY_S, ANSWER_S = 60, 300


def main() -> int:
    """0 where everything held."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if not shutil.which(tool)]
    if missing or not Path("/etc/debian_version").exists():
        say(f"this needs a Debian with {' and '.join(missing or ['apt sources'])}")
        return 2
    prepare()
    machine = out(PYTHON, "-c", "import platform; print(platform.machine())").strip()
    expect("the interpreter", machine, "aarch64")
    for what in (request, light):  # a code pairs one notebook
        with tempfile.TemporaryDirectory() as folder, agent(Path(folder) / "agent") as ready:
            what(Path(folder), ready)
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
    (interpreter,) = (BUILD / "root/usr/bin").glob("python3.[0-9]*[0-9]")
    emulator = BUILD / "host/usr/bin/qemu-aarch64-static"
    PYTHON.write_text(f'#!/bin/sh\nexec {emulator} -L {BUILD}/root {interpreter} "$@"\n')
    PYTHON.chmod(0o755)
    site = BUILD / "site"
    say(f"fetching wheels of {', '.join(WHEELS)} ...")
    pip = (sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", "--no-compile")
    out(*pip, "--only-binary=:all:", "--target", site, *WHEELS)
    found = BUILD / "root/usr/lib/python3/dist-packages"
    found.mkdir(exist_ok=True)
    # programs that it starts are played, too
    rows = [f"import sys; sys.executable = {str(PYTHON)!r}", site, ROOT / "sdk"]
    (found / "arm64.pth").write_text("\n".join(map(str, [*rows, ROOT / "device_agent", ""])))
    (BUILD / "ready").touch()


def host_architecture() -> str:
    return out("dpkg", "--print-architecture").strip()


def fetch(architecture: str, into: Path, *packages: str, with_needed: bool = True) -> None:
    """Unpack packages of this system's sources, and what they need, beside this system."""
    say(f"fetching {', '.join(packages)} for {architecture} ...")
    own = into.with_name(f"apt-{architecture}-{into.name}")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (own / folder).mkdir(parents=True)
    (own / "state/status").touch()  # as if nothing were installed
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "true",
        "Dir::State": own / "state",
        "Dir::State::status": own / "state/status",
        "Dir::Cache": own / "cache",
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
def agent(state: Path):
    """What an agent there says of itself when it is ready.

    Commands beside it do not find it: QEMU shows a process another time of its own start than it
    shows to others.
    """
    line = [PYTHON, "-m", "potluck_agent", "start", "--pair", "--no-mdns", "--name", "arm"]
    line += ["--bind", "127.0.0.1", "--port", "0", "--state", state, "--memory", "512MiB"]
    line += ["--json", "--parent-pid", str(os.getpid())]
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
