"""A profile in a file plans as the one that it was written of."""

import copy
import json
import random

import pytest

import potluck
from potluck.errors import FileError, PotluckError
from potluck.profile import profile_file

HOMES = [
    ("smart-home-2", "qwen3-0.6b", potluck.Inference(batch=1)),
    ("traffic-monitor", "bert-base", potluck.Training(batch=8)),
    ("robot-indoors", "resnet50", potluck.Inference(batch=4)),
]


@pytest.mark.parametrize(("home", "model", "workload"), HOMES, ids=[home for home, *_ in HOMES])
def test_it_poses_the_same_problem(home, model, workload):
    profile = potluck.estimate(home, model, max_layers=8)
    again = profile_file.loads(profile_file.dumps(profile))
    assert again.problem(workload) == profile.problem(workload)
    assert again.signature == profile.signature
    assert again.notes == profile.notes


def test_what_is_no_profile_is_named():
    text = profile_file.dumps(potluck.estimate("robot-indoors", "resnet50", max_layers=4))
    document = json.loads(text)
    for spoiled in ("", "[]", "{}", json.dumps({**document, "format": "potluck-profile-9"})):
        with pytest.raises(FileError, match=r"p\.json"):
            profile_file.loads(spoiled, "p.json")
    for name in ("devices", "paths", "training", "inference"):
        for value in (None, 3, [{}], [["a"]]):
            if (name, value) in (("training", None), ("inference", None)):
                continue
            with pytest.raises(FileError, match=r"p\.json"):
                profile_file.loads(json.dumps({**document, name: value}), "p.json")


ODD = [None, True, -1, -0.0, 1e-300, 1e308, float("nan"), float("inf"), 2**62, "x", [], {}, [[]]]


def spoil(value, rng):
    """Puts something else in one place."""
    inside = list(value) if isinstance(value, dict) else range(len(value))
    if not inside:
        return
    key = rng.choice(inside)
    if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.85:
        spoil(value[key], rng)
    else:
        value[key] = rng.choice(ODD)


@pytest.mark.long
def test_what_is_spoiled_anywhere_is_refused_or_planned_for():
    """No value of a wrong type or size comes as far as a planner."""
    text = profile_file.dumps(potluck.estimate("robot-indoors", "resnet50", max_layers=2))
    document = json.loads(text)
    rng = random.Random(0)
    n_planned = 0
    for _ in range(600):
        spoiled = copy.deepcopy(document)
        spoil(spoiled, rng)
        try:
            profile = profile_file.loads(json.dumps(spoiled))
            assert potluck.plan(profile, potluck.Inference(batch=2)).best
            n_planned += 1
        except PotluckError:
            pass
    assert 0 < n_planned < 500
