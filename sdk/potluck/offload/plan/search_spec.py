"""Which splits are wanted: at which bandwidths, by whose way of sharing, by which deadline.

And the search. Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.errors import PlanError
from potluck.offload.plan import baselines
from potluck.offload.plan.bandwidths import Found, over
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.plan.search import LEVELS
from potluck.offload.plan.split import Split, Splitter


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """`n_searches`, if more than `bandwidths`: between two of them, too, where the best split
    changes much.

    `baseline`: shared as one of `shared_requests.WAYS`, not by our own search. With `deadline_s`
    joules are saved.
    """

    bandwidths: tuple[float, ...]
    n_searches: int = 0
    deadline_s: float | None = None
    baseline: str = ""

    @property
    def max_searches(self) -> int:
        """No more searches than these."""
        return max(self.n_searches, len(self.bandwidths))

    def search(
        self,
        sharing: OffloadProblem,
        *,
        levels: int = LEVELS,
        report: Callable[[int], None] = lambda done: None,
    ) -> Found:
        """The best split for any bandwidth: `bandwidths.over`.

        Parameters
        ----------
        sharing
            The problem.
        levels
            Shares of the rows behind a cut that are tried, evenly from none to all.
        report
            Called with the number of searches done.
        """
        splitter, done = Splitter(sharing, levels=levels), 0

        def best(bytes_per_s: float, near: Sequence[Split]) -> Split | None:
            nonlocal done
            found = self._best(splitter, bytes_per_s, near)
            done += 1
            report(done)
            return found

        return over(
            self.bandwidths,
            splitter,
            best,
            max_searches=self.n_searches,
            deadline_s=self.deadline_s,
        )

    def _best(self, splitter: Splitter, bytes_per_s: float, near: Sequence[Split]) -> Split | None:
        if self.baseline:
            return baselines.answer(self.baseline, splitter, bytes_per_s, self.deadline_s)
        if self.deadline_s is not None:
            try:
                return splitter.share(bytes_per_s, deadline_s=self.deadline_s, near=near)
            except PlanError:  # nothing is that fast: then as fast as it goes
                pass
        return splitter.share(bytes_per_s, near=near)
