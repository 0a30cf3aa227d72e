"""Power without a meter: idle + (max - idle) x busy + radio x sending, from three numbers in the
device's profile.
"""


class PowerModel:
    """`source` is "estimated" for a real device without a meter, "simulated" for an emulated
    one.
    """

    def __init__(
        self, idle_w: float, max_w: float, radio_w: float, *, source: str = "estimated"
    ) -> None:
        if not 0 <= idle_w <= max_w or not 0 <= radio_w < float("inf") or max_w == float("inf"):
            raise ValueError(
                f"power of {idle_w}, {max_w}, {radio_w} W: expected 0 <= idle <= max and 0 <= radio"
            )
        self.source = source
        self._idle_w = idle_w
        self._max_w = max_w
        self._radio_w = radio_w
        self._last: tuple[float, float, float] | None = None  # (now_s, busy_s, radio_s)

    def advance(self, now_s: float, busy_s: float, radio_s: float) -> tuple[float, float]:
        """(watts, joules) since the last call, from the seconds of computing and sending so far.

        >>> model = PowerModel(2.0, 10.0, 1.0)
        >>> model.advance(0.0, 0.0, 0.0)
        (2.0, 0.0)
        >>> model.advance(4.0, 1.0, 2.0)  # a quarter busy, half of it sending: 2 + 8/4 + 1/2
        (4.5, 18.0)
        """
        before_s, before_busy_s, before_radio_s = self._last or (now_s, busy_s, radio_s)
        self._last = now_s, busy_s, radio_s
        span_s = now_s - before_s
        if span_s <= 0:
            return self._idle_w, 0.0
        busy_frac = min(1.0, max(0.0, (busy_s - before_busy_s) / span_s))
        radio_frac = min(1.0, max(0.0, (radio_s - before_radio_s) / span_s))
        watts = self._idle_w + (self._max_w - self._idle_w) * busy_frac + self._radio_w * radio_frac
        return watts, watts * span_s
