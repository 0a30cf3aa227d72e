"""The bound of what a notebook holds of a device's values, as a check that any test of the
controller can make.
"""

from potluck.sessions.controller import Controller


def check_held(controller: Controller) -> None:
    """No more bytes of a device's values than the executions under way expect of it.

    AssertionError otherwise.
    """
    for device, peer in controller._peers.items():
        under_way = controller._executions.on(device)
        expected = sum(sum(x.launch.expects.get(device, {}).values()) for x in under_way)
        arrived = sum(
            len(raw.data) for x in under_way for (at, _), raw in x.outputs.items() if at == device
        )
        held = peer.traffic.held_bytes + arrived
        assert held <= expected, f"{held} bytes of {device} are held, {expected} are expected"
