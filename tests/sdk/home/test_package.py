"""`import potluck` is light, and every name is found when it is used."""

import inspect
import pydoc
import subprocess
import sys

import pytest

import potluck


def loaded_after(code):
    script = (
        f"import sys\n{code}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import potluck", {"torch", "numpy", "zmq", "zeroconf", "scipy", "matplotlib", "rich"}),
        (
            "import potluck; potluck.Training; potluck.QoE; potluck.AdamW",
            {"torch", "numpy", "zmq", "zeroconf"},
        ),
        ("import potluck; potluck.plan; potluck.load_plan", {"torch", "numpy", "zmq", "zeroconf"}),
        ("import potluck; potluck.Home", {"torch", "numpy", "zeroconf"}),
    ],
)
def test_importing_stays_light(code, absent):
    assert not absent & loaded_after(code)


def test_every_public_name_is_there():
    for name in potluck.__all__:
        assert getattr(potluck, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = potluck.colour


def test_plan_is_a_function_that_explains_itself():
    text = pydoc.render_doc(potluck.plan, renderer=pydoc.plaintext)
    assert inspect.isfunction(potluck.plan)
    assert all(name in text for name in inspect.signature(potluck.plan).parameters)
