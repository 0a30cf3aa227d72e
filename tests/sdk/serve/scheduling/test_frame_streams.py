"""Streams: what they are granted, how frames take turns, and that order is kept."""

from random import Random

import pytest
from tests.sdk.serve.serving import allocation, stream_service

from potluck.serve.scheduling.frame_streams import StreamLedger

# 5 ms and 5 ms more per frame: batches of 16, two frames of one stream at once
CAMERAS = allocation(stream_service(fps=60, tolerance_s=0.2, fixed_s=0.005, item_s=0.005))


def test_the_settings_that_these_tests_count_on():
    assert (CAMERAS.batch, CAMERAS.multi_frame) == (16, 2)


def test_a_stream_alone_has_batches_of_its_own_frames():
    ledger = StreamLedger(CAMERAS, 1)
    assert ledger.idle_fps() == pytest.approx(2 / 0.015)


def test_streams_that_share_a_replica_make_it_faster():
    ledger = StreamLedger(CAMERAS, 1)
    ledger.admit(1, 60.0)
    # with a second one, four frames in 25 ms: 160 less the 60 that are taken
    assert ledger.idle_fps() == pytest.approx(100.0)


def test_a_stream_fills_one_replica_before_it_takes_two():
    ledger = StreamLedger(CAMERAS, 2)
    assert ledger.admit(1, 60.0).fps == ((0, 60.0),)
    assert ledger.admit(2, 60.0).fps == ((0, 60.0),)


def test_a_stream_too_fast_for_one_takes_several_in_turn():
    ledger = StreamLedger(CAMERAS, 2)
    grant = ledger.admit(1, 200.0)
    assert grant.total_fps == pytest.approx(200.0)
    assert len(grant.fps) == 2


def test_without_data_parallelism_it_gets_one_replica():
    ledger = StreamLedger(CAMERAS, 2, data_parallel=False)
    assert ledger.free_fps(200.0) == pytest.approx(2 / 0.015)
    assert ledger.admit(1, 200.0).total_fps == pytest.approx(2 / 0.015)


def test_what_ends_is_free_again():
    ledger = StreamLedger(CAMERAS, 1)
    before = ledger.idle_fps()
    ledger.admit(1, 60.0)
    ledger.end(1)
    assert ledger.idle_fps() == pytest.approx(before)
    assert ledger.end(1) is None


def test_a_stream_that_lost_its_replica_is_named():
    ledger = StreamLedger(CAMERAS, 2)
    ledger.admit(1, 60.0)
    ledger.admit(2, 200.0)
    assert ledger.resize(1) == [2]
    assert ledger.n_replicas == 1


@pytest.mark.parametrize("seed", range(30))
def test_no_replica_ever_has_more_than_it_computes(seed):
    rng = Random(seed)
    ledger = StreamLedger(CAMERAS, rng.randint(1, 4), data_parallel=rng.random() < 0.5)
    alive = {}
    for number in range(60):
        if alive and rng.random() < 0.4:
            ledger.end(alive.popitem()[0])
        wanted_fps = rng.uniform(1, 150)
        expected = ledger.free_fps(wanted_fps)
        grant = ledger.admit(number, wanted_fps)
        assert grant.total_fps == pytest.approx(expected)
        alive[number] = grant
        used = sum(each.total_fps for each in alive.values())
        assert used <= ledger.capacity_fps + 1e-6
