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
