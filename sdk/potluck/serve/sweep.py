"""Many simulations at once, by any `concurrent.futures.Executor`: a process pool by default, Dask
or Ray where one machine is not enough.

    from dask.distributed import Client
    outcomes = sweep(cases, schemes, executor=Client("tcp://scheduler:8786").get_executor())

Every case is a few numbers, and is drawn and played where it is sent, so nothing large travels.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import product

from potluck.errors import UserError
from potluck.serve.simulate.cases import SweepCase, play
from potluck.serve.simulate.outcome import ServingOutcome
from potluck.serve.simulate.scheme import Scheme


def sweep(
    cases: Sequence[SweepCase], schemes: Sequence[Scheme], executor: Executor | None = None
) -> dict[tuple[SweepCase, str], ServingOutcome]:
    """The outcome of every case by every scheme; the same whatever executor plays them.

    Parameters
    ----------
    cases
        What is played.
    schemes
        How it is served; their names must differ.
    executor
        Plays them; a pool of this machine's processes if left out. It is not shut down.

    Raises
    ------
    UserError
        Two schemes have one name.
    """
    if len({scheme.name for scheme in schemes}) < len(schemes):
        raise UserError(
            f"schemes need different names, got {', '.join(scheme.name for scheme in schemes)}.",
            next_step="dataclasses.replace(scheme, name=...) names one anew.",
        )
    pairs = [*product(cases, schemes)]
    if executor is None:
        with ProcessPoolExecutor() as pool:
            return _play_all(pairs, pool)
    return _play_all(pairs, executor)


def _play_all(
    pairs: Sequence[tuple[SweepCase, Scheme]], executor: Executor
) -> dict[tuple[SweepCase, str], ServingOutcome]:
    futures = [executor.submit(play, case, scheme) for case, scheme in pairs]
    return {
        (case, scheme.name): future.result()
        for (case, scheme), future in zip(pairs, futures, strict=True)
    }
