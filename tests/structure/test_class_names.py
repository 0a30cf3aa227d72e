"""A class name of shipped code means one thing, but for a few that say why."""

import pytest
from tests.structure import lint
from tests.structure.class_names import SHARED, repeated

RUN = "sdk/potluck/run/x.py"
RUN_TOO = "sdk/potluck/run/y.py"
PLAN = "sdk/potluck/planning/x.py"
PLAIN = "class Step: ..."
PRIVATE = "class _Step: ..."


def test_no_two_classes_have_one_name_without_a_reason():
    found = repeated(lint.modules())
    assert {name: paths for name, paths in found.items() if name not in SHARED} == {}
    assert set(SHARED) <= set(found), "an exception that nothing needs"


@pytest.mark.parametrize(
    "modules",
    [
        [(RUN, PLAIN), (PLAN, PLAIN)],
        [(RUN, PLAIN), (RUN_TOO, PRIVATE)],
        [(RUN, PRIVATE), (RUN_TOO, PRIVATE)],
        [(RUN, "class Outer:\n    class Step: ..."), (PLAN, PLAIN)],
        [(RUN, f"if True:\n    {PLAIN}"), (PLAN, PLAIN)],
    ],
)
def test_finds_names_that_are_used_twice(modules):
    assert set(repeated(modules)) == {"Step"}


@pytest.mark.parametrize(
    "modules",
    [
        [(RUN, PLAIN), (PLAN, PRIVATE)],
        [(RUN, PLAIN), (RUN_TOO, f"def f():\n    {PLAIN}")],
        [(RUN, PLAIN), (PLAN, "class Steps: ...")],
    ],
)
def test_lets_helpers_of_other_rooms_alone(modules):
    assert repeated(modules) == {}
