"""Shared memory: places never overlap, gaps merge, nothing outside can be reached."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_agent.allocator import ALIGN, Allocator, ArenaFull
from potluck_agent.worker.arena import Arena


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000), st.integers(0, 10**6)), max_size=60))
def test_places_never_overlap_and_freeing_all_restores_one_gap(steps):
    allocator = Allocator(16_384)
    live = {}
    refused = []
    for allocate, nbytes, choice in steps:
        if allocate or not live:
            try:
                offset = allocator.allocate(nbytes)
            except ArenaFull as error:
                refused.append((max(nbytes, 1), error.largest_bytes))
                continue
            assert offset % ALIGN == 0
            assert offset + nbytes <= 16_384
            for other, length in live.items():
                assert offset + max(nbytes, 1) <= other or other + max(length, 1) <= offset
            live[offset] = nbytes
        else:
            offset = sorted(live)[choice % len(live)]
            allocator.free(offset)
            del live[offset]
    assert all(largest < needed for needed, largest in refused)
    for offset in live:
        allocator.free(offset)
    assert allocator.used_bytes == 0
    assert allocator.allocate(16_384) == 0


def test_neighbouring_gaps_become_one_in_any_order_of_freeing():
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)):
        allocator = Allocator(3 * ALIGN)
        places = [allocator.allocate(1) for _ in range(3)]
        for index in order:
            allocator.free(places[index])
        assert allocator.allocate(3 * ALIGN) == 0


def test_a_full_arena_says_what_was_needed_and_what_is_free():
    allocator = Allocator(4 * ALIGN)
    places = [allocator.allocate(ALIGN) for _ in range(4)]
    allocator.free(places[0])
    allocator.free(places[2])
    with pytest.raises(
        ArenaFull, match="65 bytes needed in one piece, 128 free, largest piece 64"
    ) as caught:
        allocator.allocate(65)
    assert (caught.value.needed_bytes, caught.value.free_bytes, caught.value.largest_bytes) == (
        65,
        128,
        64,
    )


def test_freeing_twice_is_refused():
    allocator = Allocator(ALIGN)
    offset = allocator.allocate(1)
    allocator.free(offset)
    with pytest.raises(KeyError):
        allocator.free(offset)


def test_both_sides_see_the_same_bytes():
    ours = Arena(1000)
    theirs = Arena(1000, str(os.dup(int(ours.handle))))
    ours.view(8, 3)[:] = b"abc"
    assert bytes(theirs.view(7, 5)) == b"\0abc\0"
    ours.close()
    assert bytes(theirs.view(8, 3)) == b"abc"
    theirs.close()


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 2), (0, 1001), (1000, 1), (5, -1)])
def test_a_view_outside_is_refused(offset, nbytes):
    arena = Arena(1000)
    with pytest.raises(ValueError, match="outside a shared memory of 1000 bytes"):
        arena.view(offset, nbytes)
    arena.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux seals memory")
@pytest.mark.parametrize("nbytes", [0, 1 << 20])
def test_nobody_changes_the_length_of_shared_memory(nbytes):
    """The other side would be ended by the system at its next look beyond the new end."""
    arena = Arena(8192)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fds[0], nbytes)
    assert arena.view(0, 8192).nbytes == 8192
    arena.close()
