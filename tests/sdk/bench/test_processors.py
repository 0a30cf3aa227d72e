"""How the figures of `bench processors` are made of times."""

import pytest

from potluck.bench.processors import SETTINGS, accelerator_figures, accelerator_times, figures

OWN = [4.0, 8.0, 4.0]  # the machine was slower in the second round


def times(own, torch, train, onnx):
    """Seconds of each round with one count of threads; training takes torch itself twice as
    long.
    """
    own_train = [2 * seconds for seconds in own]
    named = {"torch": torch, "torch train": train, "onnxruntime": onnx}
    return {"own": own, "own train": own_train, **named}


ALIKE = times(OWN, OWN, [8.0, 16.0, 8.0], OWN)
FASTER = times([2.0] * 3, [2.0] * 3, [4.0] * 3, [2.0] * 3)


def test_workers_as_fast_as_torch_have_its_rate_and_its_scaling():
    found = figures({1: ALIKE, 2: FASTER})
    assert {key: value for key, value in found.items() if key.endswith("_frac")} == dict.fromkeys(
        (key for key in found if key.endswith("_frac")), 1.0
    )
    assert (found["own_speedup_1_threads"], found["own_speedup_2_threads"]) == (1.0, 2.0)


def test_the_worst_count_of_threads_counts_and_a_slow_moment_hits_both_sides():
    slow = times([2.0] * 3, [4.0] * 3, [4.0] * 3, [1.0, 2.0, 2.0])
    found = figures({1: ALIKE, 2: slow})
    assert found["torch_rate_frac"] == found["torch_rate_2_threads_frac"] == 0.5
    assert found["torch_rate_1_threads_frac"] == 1.0
    assert found["torch_train_rate_frac"] == 1.0
    assert found["torch_scaling_frac"] == 0.5
    assert found["onnxruntime_rate_frac"] == pytest.approx(1.0)


def test_with_one_count_of_threads_nothing_scales():
    found = figures({1: ALIKE})
    assert found["torch_scaling_frac"] == found["onnxruntime_scaling_frac"] == 1.0


@pytest.mark.long
def test_a_worker_on_an_accelerator_is_compared_with_torch_on_it():
    pytest.importorskip("torch")
    few = {**SETTINGS, "accelerator_width": 8, "repeats": 1, "rounds": 2, "rows": 2}
    found = accelerator_times("cpu", few)
    assert {what: len(seconds) for what, seconds in found.items()} == dict.fromkeys(found, 2)
    rates = accelerator_figures({"cuda": {**found, "own": [1.0, 3.0], "torch": [2.0, 6.0]}})
    assert rates.keys() == {"cuda_rate_frac", "cuda_train_rate_frac"}
    assert rates["cuda_rate_frac"] == 0.5
