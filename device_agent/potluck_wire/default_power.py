"""Watts of a device of which nobody knows any: both sides guess the same. Pure."""

# of an unknown processor at full load, per hardware thread (codecarbon's last resort)
THREAD_W = 4.0
IDLE_FRAC = 0.1  # of that at rest (codecarbon's load model)
RADIO_W = 1.0  # a guess for WiFi while sending


def guessed_w(n_threads: int) -> tuple[float, float, float]:
    """(idle, busy, radio) of a device of so many hardware threads.

    >>> guessed_w(4)
    (1.6, 16.0, 1.0)
    """
    busy_w = THREAD_W * n_threads
    return IDLE_FRAC * busy_w, busy_w, RADIO_W
