"""Which stages hold the same parameter: the ends of tied weights that a cut goes between. Pure."""

from collections.abc import Sequence

from potluck.errors import PlanError
from potluck.records import Segment


def holders_of(segments: Sequence[Segment]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Each parameter that several segments hold, and these by their places, ascending.

    Parameters
    ----------
    segments
        Of a plan for training, one per stage.

    Raises
    ------
    PlanError
        Two segments sum their gradients in other types.
    """
    found: dict[str, list[int]] = {}
    for p, segment in enumerate(segments):
        for part in segment.shared:
            found.setdefault(part.name, []).append(p)
    shared = {name: tuple(places) for name, places in found.items() if len(places) > 1}
    for name, places in shared.items():
        if len({segments[p].vector_item_bytes for p in places}) > 1:
            raise PlanError(
                f"{name} is held by several stages, of which one has weights in float64.",
                next_step="Keep its layers in one stage.",
            )
    return tuple(shared.items())
