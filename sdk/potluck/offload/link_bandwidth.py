"""The bandwidth between the device and its helper: what transfers have shown, and asking where none
shows it.
"""

import time

from potluck.offload.bandwidth_filter import Estimator, ProbeTimer
from potluck.sessions.events import RequestAll
from potluck.sessions.link import SessionLink
from potluck_wire.messages import Probe

PROBE_BYTES = 32 * 1024


class LinkBandwidth:
    """`bytes_per_s` is what counts now."""

    def __init__(self, first_bytes_per_s: float, latency_s: float) -> None:
        self.bytes_per_s = first_bytes_per_s
        self._estimator = Estimator(first_bytes_per_s, latency_s=latency_s)
        self._probe_timer = ProbeTimer(time.monotonic())

    def observe(self, nbytes: int, seconds: float, *, is_probe: bool = False) -> None:
        """A transfer has taken so long.

        Parameters
        ----------
        nbytes
            That went over.
        seconds
            That it took, latency included.
        is_probe
            It was sent to find out.
        """
        now_s, thought = time.monotonic(), self.bytes_per_s
        self._estimator.observe(nbytes, seconds, now_s)
        self.bytes_per_s = self._estimator.bytes_per_s
        self._probe_timer.observe(now_s, nbytes / max(seconds, 1e-9), thought, is_probe=is_probe)

    def should_ask(self, now_s: float, *, alone: bool) -> bool:
        """Whether to ask now. `alone`: requests show nothing, as the device answers them alone."""
        return self._probe_timer.is_due(now_s, alone=alone)

    def ask(self, link: SessionLink, task: str, device: str, peer: str) -> None:
        """Let the device send its helper something.

        Parameters
        ----------
        link
            The home's connection.
        task
            Its name.
        device
            Who sends.
        peer
            Who gets it.
        """
        probe = Probe(task=task, peer=peer, nbytes=PROBE_BYTES, repeats=1)
        answers = link.ask(RequestAll(requests={device: (probe, ())})).result()
        self.observe(PROBE_BYTES, answers[device][0].seconds[0], is_probe=True)
