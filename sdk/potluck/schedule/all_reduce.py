"""What keeps the replicas of a stage in step: the flat vector of a step, and the ring all-reduce
that sums it.
"""

from collections.abc import Sequence

from potluck.records import Segment
from potluck.schedule.program_builder import Annotation, ProgramBuilder

FLOAT_BYTES = 4  # the flat gradient vector is float32
# where no gradient comes back: statistics move, no weight does
STILL = {"name": "sgd", "lr": 0.0, "weight_decay": 0.0}


def vector_elements(segment: Segment, learns: bool) -> int:
    """Elements of the vector of a step: gradients, then running statistics; 0 where a step changes
    neither.

    Statistics move with every forward in training, whether a gradient comes back to the stage or
    not.
    """
    return segment.parameter_count + segment.buffer_count if learns or segment.buffer_count else 0


def ring_all_reduce(
    programs: ProgramBuilder,
    devices: Sequence[str],
    vector: str,
    n_elements: int,
    *,
    tag: str,
    priority: int,
) -> str:
    """Sum the flat `vector` over `devices`; every device ends with the same sum, bit for bit.

    Reduce-scatter, then all-gather, in 2 (n - 1) rounds of one n-th of the vector each (Patarasuk
    and Yuan 2009): in round r replica i sends piece i - r to its right neighbour. Empty pieces are
    left out. `tag` makes names unique.

    Parameters
    ----------
    programs
        Where the instructions are appended.
    devices
        The replicas, in ring order.
    vector
        The value to sum: flat, float32, the same length on every device.
    n_elements
        Its length.
    tag
        Goes into the names of the values on the way, which it makes unique.
    priority
        Of the sends; smaller goes first.

    Returns
    -------
    str
        The name of the sum on every device.
    """
    n = len(devices)
    bounds = [piece * n_elements // n for piece in range(n + 1)]
    size = [(bounds[k + 1] - bounds[k]) * FLOAT_BYTES for k in range(n)]
    held: list[dict[int, str]] = []  # per replica: piece -> value name
    for device in devices:
        held.append({k: f"{tag}.own.{k}" for k in range(n) if size[k]})
        for k, name in held[-1].items():
            programs.compute(
                device,
                "slice",
                [vector],
                {name: size[k]},
                note=Annotation(label=f"{tag} slice", nbytes=size[k]),
                priority=priority,
                dim=0,
                start=bounds[k],
                stop=bounds[k + 1],
            )
    for turn in range(2 * (n - 1)):
        gathering = turn >= n - 1
        # Everyone sends before anyone overwrites a piece: the pieces of one turn differ between
        # neighbours.
        arriving: list[tuple[int, int, str]] = []
        for i, device in enumerate(devices):
            piece = (i + 1 - (turn - n + 1)) % n if gathering else (i - turn) % n
            if size[piece]:
                name, right = f"{tag}.{turn}.{piece}", (i + 1) % n
                programs.send(
                    device,
                    held[i][piece],
                    devices[right],
                    name,
                    label=f"{tag} turn {turn}",
                    priority=priority + turn,
                )
                arriving.append((right, piece, name))
        for i, piece, name in arriving:
            if gathering:
                held[i][piece] = name
                continue
            total = f"{tag}.sum.{turn}.{piece}"
            programs.compute(
                devices[i],
                "add",
                [held[i][piece], name],
                {total: size[piece]},
                note=Annotation(label=f"{tag} add", nbytes=size[piece]),
                priority=priority + turn,
            )
            held[i][piece] = total
    whole = f"{tag}.all"
    for i, device in enumerate(devices):
        nbytes = n_elements * FLOAT_BYTES
        programs.compute(
            device,
            "concat",
            [held[i][k] for k in sorted(held[i])],
            {whole: nbytes},
            note=Annotation(label=f"{tag} concat", nbytes=nbytes),
            priority=priority + 2 * n,
            dim=0,
        )
    return whole
