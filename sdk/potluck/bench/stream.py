"""Our stream of tensors between two agents against ZeroMQ alone, raw under CURVE and plain, in
frames of the same size.

Ours: one agent sends to the other, with headers, checks, credits and encryption, in chunks as large
as the link has shown to carry in 20 ms. They have 256 KiB at first and on slow links, and at most
an eighth of the tensor above 1 MiB. The receiver checks what comes and keeps none of it, as theirs
does. Timed by the sender from the first chunk to the acknowledgement of the last. Theirs: the same
bytes to another process that drops them, until its one answer. Their frames are as large as our
chunks on a fast link (1 MiB of a tensor of 1 MiB, else 2 MiB), or of `frame_kib`. All three take
turns in each round; ratios are medians over rounds, `_low` and `_high` their first and last tenth.
"""

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from potluck.bench.harness import Result
from potluck.bench.raw_zeromq import RawStream
from potluck_wire.chunks import largest_chunk_bytes
from potluck_wire.limits import MAX_CHUNK_BYTES, MIB
from potluck_wire.messages import Probe

if TYPE_CHECKING:
    from potluck.home import Home

SETTINGS: Mapping[str, float] = {"repeats": 25, "frame_kib": 0}
GOALS = {"ratio_to_curve_16mib": (">=", 0.9)}
SIZES_MIB = (1, 16, 64)


def run(settings: Mapping[str, float]) -> Result:
    """Measure all sizes."""
    from potluck.home import Home

    given_bytes = int(settings["frame_kib"]) * 1024
    largest_bytes = given_bytes or MAX_CHUNK_BYTES
    figures: dict[str, float] = {}
    with (
        Home.local(2) as home,
        RawStream(curve=True, frame_bytes=largest_bytes) as curve,
        RawStream(curve=False, frame_bytes=largest_bytes) as plain,
    ):
        for mib in SIZES_MIB:
            nbytes = mib * MIB
            frame_bytes = given_bytes or largest_chunk_bytes(nbytes)
            rounds = [
                (
                    _ours_s(home, nbytes),
                    curve.transfer(nbytes, frame_bytes),
                    plain.transfer(nbytes, frame_bytes),
                )
                for _ in range(int(settings["repeats"]) + 1)
            ]
            figures |= _figures(mib, rounds[1:])
    return Result(name="stream", figures=figures, settings=settings, goals=GOALS)


def _ours_s(home: "Home", nbytes: int) -> float:
    from potluck.sessions.events import RequestAll

    sender, receiver = tuple(home.devices)[:2]
    order = Probe(task=f"bench-{nbytes}", peer=receiver, nbytes=nbytes, repeats=1)
    answers = home._link.ask(RequestAll(requests={sender: (order, ())})).result()
    return float(answers[sender][0].seconds[0])


def _figures(mib: int, rounds: list[tuple[float, float, float]]) -> dict[str, float]:
    to_curve = sorted(curve / ours for ours, curve, _ in rounds)
    tenth = len(to_curve) // 10
    return {
        f"ratio_to_curve_{mib}mib": median(to_curve),
        f"ratio_to_curve_{mib}mib_low": to_curve[tenth],
        f"ratio_to_curve_{mib}mib_high": to_curve[-1 - tenth],
        f"ratio_to_plain_{mib}mib": median(plain / ours for ours, _, plain in rounds),
        f"mib_per_s_{mib}mib": mib / median(ours for ours, _, _ in rounds),
        f"curve_mib_per_s_{mib}mib": mib / median(curve for _, curve, _ in rounds),
        f"plain_mib_per_s_{mib}mib": mib / median(plain for _, _, plain in rounds),
    }
