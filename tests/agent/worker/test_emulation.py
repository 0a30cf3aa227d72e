"""Emulated devices: a steady multiple of the processor time."""

import pytest

from potluck_agent.worker.emulation import WINDOW, EmulatedDurations

RUN = ("r/0/s", ("run", 4))


def test_a_task_lasts_the_slowdown_times_the_quickest_of_its_kind():
    stretch = EmulatedDurations(8.0)
    #         warm-up  settled  disturbed     settled
    taken_s = (0.500, 0.010, 0.012, 0.400, 0.010)
    assert [stretch.target_s(RUN, taken) / 8 for taken in taken_s] == [
        0.5,
        0.010,
        0.010,
        0.010,
        0.010,
    ]


def test_kinds_do_not_mix_and_are_forgotten_with_their_segment():
    stretch = EmulatedDurations(2.0)
    other = ("r/1/s", ("run", 4))
    stretch.target_s(RUN, 1.0)
    assert stretch.target_s(other, 3.0) == 6.0
    stretch.forget("r/0/s")
    assert stretch.target_s(RUN, 5.0) == 10.0
    assert stretch.target_s(other, 4.0) == 6.0


def test_a_lasting_change_is_followed_after_one_window():
    stretch = EmulatedDurations(2.0)
    for _ in range(WINDOW):
        stretch.target_s(RUN, 1.0)
    targets = [stretch.target_s(RUN, 3.0) for _ in range(WINDOW)]
    assert targets[0] == 2.0
    assert targets[-1] == 6.0


def test_nothing_is_stretched_without_a_slowdown():
    assert EmulatedDurations().target_s(RUN, 1.0) == 0.0


@pytest.mark.parametrize("slowdown", [0.5, 0.0, -1.0, float("nan"), float("inf")])
def test_a_slowdown_that_is_none_is_refused(slowdown):
    with pytest.raises(ValueError, match="expected 1 to 10,000"):
        EmulatedDurations(slowdown)
