"""A stream goes on where its devices were lost, as soon as others have its service."""

import pytest
from tests.sdk.serve.serving import allocation, stream_service

from potluck.serve.runtime.dispatch import Dispatch
from potluck.serve.scheduling.replica_pools import Pool

torch = pytest.importorskip("torch")
FPS = 10.0


class InstantDevice:
    """Has the service; answers at once."""

    def __init__(self, name):
        self.devices, self.batch = (name,), 8
        self.is_lost = self.is_leaving = False
        self.n_under_way = 0

    def close(self):
        self.is_lost = True


class InstantAnswer:
    """Is there as soon as it is looked for."""

    def __init__(self, device, rows):
        self.devices, self.rows = device.devices, rows

    def on_done(self, callback):
        callback(None)

    def wait(self):
        return [torch.zeros(self.rows, 1)]


def lost_by(dispatch, record, pool):
    """A service whose only device is found lost: somebody places it anew."""
    device = InstantDevice("one")
    dispatch.add(record)
    dispatch.place([(pool, [device])])
    device.is_lost = True
    asked = dispatch.ask("cameras", [torch.zeros(1, 1)], 1, list)
    assert dispatch.lost.is_set()
    assert not asked.is_over
    dispatch.lost.clear()


@pytest.mark.parametrize("comes", [True, False])
def test_a_stream_that_is_asked_for_while_its_service_is_placed_anew_waits_for_it(comes):
    now_s = [0.0]
    record = stream_service("cameras", fps=FPS, tolerance_s=0.5)
    pool = Pool(allocation(record), 1)
    answering = lambda name, device, *_: InstantAnswer(device, 1)  # noqa: E731
    dispatch = Dispatch(answering, lambda: now_s[0], is_placed_anew=True)
    lost_by(dispatch, record, pool)
    stream, granted_fps = dispatch.open("cameras", FPS)
    assert (granted_fps, dispatch.is_open(stream)) == (0.0, True)
    row = [torch.zeros(1, 1)]
    asked = dispatch.ask("cameras", row, 1, list, stream=stream, frame=0)
    assert not asked.is_over
    if comes:
        dispatch.place([(pool, [InstantDevice("two")])])
    dispatch.placed_anew()
    assert asked.is_over
    assert (asked.future.exception() is None) == comes
    assert dispatch.granted_fps(stream) == (FPS if comes else 0.0)
    if not comes:  # nobody places it any more
        refused, granted_fps = dispatch.open("cameras", FPS)
        assert (granted_fps, dispatch.is_open(refused)) == (0.0, False)
    dispatch.end("cameras", stream)
    assert not dispatch.is_open(stream)
    dispatch.close()


def test_a_stream_goes_on_when_a_device_is_back():
    now_s = [0.0]
    record = stream_service("cameras", fps=FPS, tolerance_s=0.5)
    pool = Pool(allocation(record), 1)
    dispatch = Dispatch(lambda name, device, *_: InstantAnswer(device, 1), lambda: now_s[0])
    dispatch.add(record)
    dispatch.place([(pool, [InstantDevice("one")])])
    stream, granted_fps = dispatch.open("cameras", FPS)
    assert granted_fps == FPS

    def frame(number):
        now_s[0] += 1 / FPS
        row = [torch.zeros(1, 1)]
        asked = dispatch.ask("cameras", row, 1, list, stream=stream, frame=number)
        return asked.future.exception() is None

    assert all(frame(number) for number in range(20))
    dispatch.place([])
    assert not any(frame(number) for number in range(20, 40))
    dispatch.place([(pool, [InstantDevice("two")])])
    assert all(frame(number) for number in range(40, 60))
    assert dispatch.granted_fps(stream) == FPS
    dispatch.end("cameras", stream)
    assert not frame(60)
    dispatch.close()
