"""The bound of what a notebook holds of a device's values, as a check that any test of the
controller can make.
"""

from potluck.sessions.controller import Controller


def check_held(controller: Controller) -> None:
    """No more bytes of a device's values than the executions under way expect of it.

    AssertionError otherwise.
    """
    for device, values in controller.held().items():
        assert values.here_bytes <= values.expected_bytes, device
