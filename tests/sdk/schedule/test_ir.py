"""Actions and schedules: text form, policies, and the proof that a schedule is legal."""

import random

import pytest

from potluck.errors import PlanError, UserError
from potluck.records import Plan, Stage
from potluck.schedule import policies
from potluck.schedule.ir import Action, dumps, loads
from potluck.schedule.rows import intervals, overlaps
from potluck.schedule.stage_graph import chain
from potluck.schedule.validate import check


@pytest.mark.parametrize("text", ["0F0", "2B13", "10I7", "3W1"])
def test_action_text_round_trips(text):
    assert str(Action.parse(text)) == text


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "2F0x"])
def test_refuses_text_that_is_no_action(text):
    with pytest.raises(UserError, match="not an action"):
        Action.parse(text)


def test_one_f_one_b_by_hand():
    assert dumps(policies.one_f_one_b(3, 4, [3, 2, 1])) == (
        "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3"
    )


def test_default_warm_up_is_asteroids():
    assert [policies.warm_up_depth(p, 3, 8) for p in range(3)] == [5, 3, 1]
    assert [policies.warm_up_depth(p, 3, 4) for p in range(3)] == [4, 3, 1]


@pytest.mark.parametrize(
    ("room", "n_micro_batches", "depths"),
    [
        ([99] * 4, 32, [7, 5, 3, 1]),
        ([99] * 4, 3, [3, 3, 3, 1]),
        ([2, 9, 9], 32, [2, 2, 1]),  # none keeps more than the one before it gives
        ([9, 7, 5, 1, 1], 32, [7, 5, 3, 1, 1]),
        # what goes further ahead would only be on the links
        ([9, 9, 1, 9, 9], 32, [5, 3, 1, 1, 1]),
    ],
)
def test_warm_ups_as_memory_allows(room, n_micro_batches, depths):
    assert policies.warm_up_depths(room, n_micro_batches) == depths
    check(policies.one_f_one_b(len(room), n_micro_batches, depths), n_micro_batches, max_kept=room)


def test_schedule_text_round_trips():
    schedule = policies.fill_drain(2, 3)
    assert loads(dumps(schedule)) == schedule


@pytest.mark.parametrize("n_stages", range(1, 6))
@pytest.mark.parametrize("n_micro_batches", range(1, 9))
def test_every_policy_is_legal(n_stages, n_micro_batches):
    depths = [policies.warm_up_depth(p, n_stages, n_micro_batches) for p in range(n_stages)]
    check(policies.one_f_one_b(n_stages, n_micro_batches), n_micro_batches, max_kept=depths)
    check(policies.fill_drain(n_stages, n_micro_batches), n_micro_batches)
    check(policies.forward_only(n_stages, n_micro_batches), n_micro_batches, training=False)


@pytest.mark.parametrize("n_rows", range(1, 5))
@pytest.mark.parametrize("n_chunks", range(1, 4))
@pytest.mark.parametrize("n_micro_batches", [1, 2, 3, 4, 6, 7, 9, 12])
def test_interleaving_is_legal(n_rows, n_chunks, n_micro_batches):
    schedule = policies.interleaved(n_rows, n_chunks, n_micro_batches)
    check(schedule, n_micro_batches, before=chain(n_rows * n_chunks))
    assert loads(dumps(schedule)) == schedule


def test_interleaved_by_hand():
    assert dumps(policies.interleaved(2, 2, 2)) == (
        "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1"
    )


@pytest.mark.parametrize(
    ("n_rows", "n_micro_batches", "n_at_once"), [(2, 4, 2), (2, 3, 3), (4, 6, 6), (4, 10, 5)]
)
def test_interleaved_micro_batches_go_in_equal_rounds(n_rows, n_micro_batches, n_at_once):
    first, *_ = policies.interleaved(n_rows, 2, n_micro_batches)
    assert [action.stage for action in first[: 2 * n_at_once]] == [0] * n_at_once + [
        n_rows
    ] * n_at_once


def test_refuses_to_interleave_what_does_not_go_round():
    with pytest.raises(UserError, match="got 2, 2 and 0"):
        policies.interleaved(2, 2, 0)
    plan = make_plan("a", "b", "c")
    with pytest.raises(PlanError, match="go round the same devices"):
        policies.policy("interleaved", training=True)(plan)


def test_policies_have_names():
    plan = make_plan("a", "b", "a", "b")
    assert policies.policy("interleaved", training=True)(plan) == policies.interleaved(2, 2, 4)
    assert policies.policy(None, training=True)(plan) == policies.one_f_one_b(4, 4, [1, 1, 1, 1])
    assert policies.policy(None, training=False)(plan) == policies.forward_only(4, 4)
    assert policies.policy(policies.POLICIES["fill-drain"], training=True)(
        plan
    ) == policies.fill_drain(4, 4)
    with pytest.raises(UserError, match=r"no schedule is called 'gpipe'.*1f1b, fill-drain"):
        policies.policy("gpipe", training=True)


def test_refuses_a_schedule_of_other_stages_than_the_plan():
    with pytest.raises(PlanError, match="stage 2 never does 2F0"):
        check(policies.fill_drain(2, 1), 1, before=chain(3))


def make_plan(*devices):
    stages = tuple(
        Stage(start=p, stop=p + 1, devices=(name,), shares=(2,)) for p, name in enumerate(devices)
    )
    return Plan(planner="test", model="m", stages=stages, micro_batch=2, n_micro_batches=4)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0F0,0B0\n1B0,1F0", "stage 0: 0F0 0B0 <-- ERROR HERE"),  # stage 1 can never begin
        ("0F0,0F0,0B0\n1F0,1B0", "0F0 comes twice"),
        ("0F0\n1F0,1B0", "stage 0 never does 0B0"),
        ("0F0,0B0\n1F0,0B0,1B0", "0B0 does not belong here, stage 0 is in row 0"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0", "0F1 does not belong"),
        # a backward before its forward
        ("0F0,2B0,2F0,0B0\n1F0,1B0", "stages 0, 2: 0F0 2B0 <-- ERROR HERE"),
        ("0F0,0B0,0W0", "0W0 does not belong"),
    ],
)
def test_refuses_an_illegal_schedule_and_shows_where(text, error):
    with pytest.raises(PlanError) as caught:
        check(loads(text), 1)
    assert error in str(caught.value)


def test_refuses_a_schedule_that_keeps_too_many_micro_batches():
    with pytest.raises(PlanError, match=r"0F2 would keep 3 micro-batches where 2 fit"):
        check(policies.fill_drain(1, 3), 3, max_kept=[2])


def test_rows_over_a_cut():
    assert intervals((5, 3)) == ((0, 5), (5, 8))
    assert overlaps((5, 3), (4, 4)) == ((0, 0, 0, 4), (0, 1, 4, 5), (1, 1, 5, 8))


@pytest.mark.parametrize("seed", range(50))
def test_overlaps_are_all_pairs_of_intervals_that_share_rows(seed):
    rng = random.Random(seed)
    left, right = ([rng.randint(0, 4) for _ in range(rng.randint(1, 6))] for _ in range(2))
    pairs = [
        (i, j, max(a, c), min(b, d))
        for i, (a, b) in enumerate(intervals(left))
        for j, (c, d) in enumerate(intervals(right))
    ]
    assert overlaps(left, right) == tuple(pair for pair in pairs if pair[2] < pair[3])
    assert overlaps((8,), (3, 5)) == ((0, 0, 0, 3), (0, 1, 3, 8))
