"""Our stream of tensors between two agents against ZeroMQ alone, raw under CURVE and plain, at the same frame size.

Ours: one agent sends to the other, with headers, checks, credits and encryption, in chunks as large as the link has
shown to carry in 20 ms (256 KiB at first and on slow links, at most an eighth of the tensor above 1 MiB). The receiver
checks what comes and keeps none of it, as theirs does. Timed by the sender from the first chunk to the acknowledgement
of the last.
Theirs: the same bytes in frames of `frame_kib` to another process that drops them, until its one answer. All three
take turns in each round.
"""

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from potluck.bench.frame import Result
from potluck.bench.raw import RawStream
from potluck_wire.messages import Probe

if TYPE_CHECKING:
    from potluck.home import Home

SETTINGS: Mapping[str, float] = {"repeats": 7, "frame_kib": 1024}
GOALS = {"ratio_to_curve_16mib": (">=", 0.9)}
SIZES_MIB = (1, 16, 64)
MIB = 2**20


def run(settings: Mapping[str, float]) -> Result:
    """Measure all sizes."""
    from potluck.home import Home

    frame_bytes = int(settings["frame_kib"]) * 1024
    figures: dict[str, float] = {}
    with (
        Home.local(2) as home,
        RawStream(curve=True, frame_bytes=frame_bytes) as curve,
        RawStream(curve=False, frame_bytes=frame_bytes) as plain,
    ):
        for mib in SIZES_MIB:
            rounds = [_round(home, curve, plain, mib * MIB) for _ in range(int(settings["repeats"]) + 1)][1:]
            figures |= _figures(mib, rounds)
    return Result(name="stream", figures=figures, settings=settings, goals=GOALS)


def _round(home: "Home", curve: RawStream, plain: RawStream, nbytes: int) -> tuple[float, float, float]:
    """Seconds of ours, CURVE and plain, one after another."""
    return _ours_s(home, nbytes), curve.transfer(nbytes), plain.transfer(nbytes)


def _ours_s(home: "Home", nbytes: int) -> float:
    from potluck.sessions.events import Gather

    sender, receiver = tuple(home.devices)[:2]
    order = Probe(task=f"bench-{nbytes}", peer=receiver, nbytes=nbytes, repeats=1)
    answers = home._link.ask(Gather(requests={sender: (order, ())})).result()
    return float(answers[sender][0].seconds[0])


def _figures(mib: int, rounds: list[tuple[float, float, float]]) -> dict[str, float]:
    return {
        f"ratio_to_curve_{mib}mib": median(curve / ours for ours, curve, _ in rounds),
        f"ratio_to_plain_{mib}mib": median(plain / ours for ours, _, plain in rounds),
        f"mib_per_s_{mib}mib": mib / median(ours for ours, _, _ in rounds),
        f"curve_mib_per_s_{mib}mib": mib / median(curve for _, curve, _ in rounds),
        f"plain_mib_per_s_{mib}mib": mib / median(plain for _, _, plain in rounds),
    }
