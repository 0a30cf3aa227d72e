"""The API reference is whole: every module of it exists, and its docstrings say what callers must
know.
"""

import importlib
import importlib.util

import pytest
from tests.structure.docstrings import lacks
from tests.structure.lint import ROOT, modules

LINES = (ROOT / "sdk/docs/modules.txt").read_text(encoding="utf-8").splitlines()
MODULES = [line for line in LINES if line and not line.startswith("#")]


def source_of(module):
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"the API reference names {module}, which is not there"
    assert spec.origin is not None, f"{module} is no file"
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_name_every_parameter_and_error(module):
    found = lacks(source_of(module))
    assert not found, f"{module}: " + "; ".join(found)


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_says_that_it_offers_is_there(module):
    found = importlib.import_module(module)
    lost = [name for name in getattr(found, "__all__", ()) if not hasattr(found, name)]
    assert not lost, f"{module}.__all__ names {', '.join(lost)}"


# Rooms that have no public functions: only their own room, or one above it, calls them.
INNER = (
    *(f"sdk/potluck/{room}/" for room in ("bench", "commands", "discover", "display", "lab")),
    *(f"sdk/potluck/graph/{room}/" for room in ("loss", "partition", "tensor", "torch")),
    *("sdk/potluck/sessions/", "sdk/docs/", "device_agent/potluck_agent/"),
)
# One visitor of a step with thirty methods that take the same words: `StepSink` explains them once.
SAME_WORDS = {
    "sdk/potluck/schedule/step.py",
    "sdk/potluck/schedule/instructions.py",
    "sdk/potluck/schedule/update_instructions.py",
}
NETWORKS = "sdk/potluck/profile/architectures.py"  # torch modules: a stranger knows their words


def test_docstrings_outside_the_reference_are_whole_too():
    found = {path: lacks(source) for path, source in modules() if not path.startswith(INNER)}
    assert {path for path, faults in found.items() if faults} == SAME_WORDS | {NETWORKS}


def test_every_module_is_listed_once():
    assert len(set(MODULES)) == len(MODULES)


def test_what_the_package_offers_is_in_the_reference():
    import potluck

    offered = {
        getattr(potluck, name) for name in potluck.__all__ if name not in ("__version__", "errors")
    }
    assert {value.__module__ for value in offered} <= set(MODULES)


WHOLE = '''
class Kept:
    """A thing.

    Parameters
    ----------
    a, b
        Two.
    *c
        More.
    """

    def __init__(self, a, b, *c): ...

    def get(self, name):
        """One.

        Raises
        ------
        KeyError
            There is none.
        """
        raise KeyError(name)

    def later(self):
        """What fails when it is called."""

        def fail():
            raise KeyError("later")

        return fail
'''


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", None),
        ("    a, b\n", "    a\n", "Kept: the parameter b is not explained"),
        ("a, b, *c)", "a, b, *c, d=1)", "Kept: the parameter d is not explained"),
        ("a, b, *c)", "a, b)", "Kept: it has no parameter c"),
        (
            "raise KeyError",
            "raise ValueError",
            "Kept.get: it raises ValueError, which Raises does not name",
        ),
        (
            "Raises\n        ------",
            "Never",
            "Kept.get: it raises KeyError, and has no Raises section",
        ),
        ("def get", "def _get", None),
        ("class Kept", "class _Kept", None),
    ],
)
def test_what_a_docstring_lacks_is_noticed(old, new, fault):
    assert lacks(WHOLE.replace(old, new)) == ([] if fault is None else [fault])
