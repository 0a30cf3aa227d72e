"""The cache of layer times: found again, never mixed up, and a bad file loses nothing but
itself.
"""

import json
from dataclasses import replace

import pytest

from potluck.errors import FileError
from potluck.profile.layer_times_store import LayerTimesStore
from potluck.records import LayerCost

ABOUT = {"who": "key", "slowdown": None, "threads": 1, "backends": {"torch": "2"}}
COSTS = (
    LayerCost(rows=(1, 8), forward_s=(0.1, 0.2), backward_s=(0.3, 0.4)),
    LayerCost(
        rows=(1, 8), forward_s=(0.5, 0.6), backward_s=(0.7, 0.8), update_s=0.3, sgd_s=(0.1, 0.2)
    ),
)
UNSORTED = {"rows": [2, 1], "forward_s": [1, 1], "backward_s": [], "source": ""}


def load(store, about=ABOUT, *, signature="m", train=True, rows=(1, 8), n_layers=2):
    return store.load(signature, about, train=train, rows=rows, n_layers=n_layers)


def test_what_was_saved_is_found(tmp_path):
    store = LayerTimesStore(tmp_path)
    assert load(store) is None
    store.save("m", ABOUT, COSTS, train=True)
    assert load(LayerTimesStore(tmp_path)) == COSTS
    assert load(store, rows=(8,)) == COSTS


@pytest.mark.parametrize(
    "other",
    [
        {"train": False},
        {"signature": "another"},
        {"rows": (1, 16)},
        {"n_layers": 3},
        {"about": ABOUT | {"slowdown": 4}},
    ],
)
def test_other_models_modes_sizes_and_devices_are_measured(tmp_path, other):
    store = LayerTimesStore(tmp_path)
    store.save("m", ABOUT, COSTS, train=True)
    assert load(store, **other) is None


def test_a_file_from_before_sgd_was_timed_is_read(tmp_path):
    store = LayerTimesStore(tmp_path)
    store.save("m", ABOUT, COSTS, train=True)
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text())
    for row in document["modes"]["training"]:
        del row["sgd_s"]
    path.write_text(json.dumps(document))
    assert load(store) == tuple(replace(cost, sgd_s=()) for cost in COSTS)


def test_both_modes_live_in_one_file(tmp_path):
    store = LayerTimesStore(tmp_path)
    store.save("m", ABOUT, COSTS, train=True)
    store.save("m", ABOUT, COSTS[:1], train=False)
    assert load(store) == COSTS
    assert load(store, train=False, n_layers=1) == COSTS[:1]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({"schema": 0, "modes": {}}),
        json.dumps({"schema": 1}),
        json.dumps({"schema": 1, "modes": {"training": [{"rows": [1]}]}}),
        json.dumps({"schema": 1, "modes": {"training": [UNSORTED]}}),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_others_stay(tmp_path, text):
    store = LayerTimesStore(tmp_path)
    store.save("m", ABOUT, COSTS, train=True)
    store.save("other", ABOUT, COSTS, train=True)
    path = store.path("m", ABOUT)
    path.write_text(text)
    with pytest.raises(FileError, match=path.name) as caught:
        load(store)
    assert caught.value.facts["path"] == str(path)
    assert path.read_text() == text
    assert load(store, signature="other") == COSTS
    store.save("m", ABOUT, COSTS, train=True)
    assert load(store) == COSTS
