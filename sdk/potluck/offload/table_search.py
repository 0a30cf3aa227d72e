"""The tables of an accelerated model: a first one soon, the whole one when a search in the
background has it.
"""

from collections.abc import Callable

from potluck.offload.background_search import BackgroundSearch
from potluck.offload.cache import SplitCache
from potluck.offload.split_table import SplitCase, SplitTable
from potluck.offload.stats import Searched


class TableSearch:
    """`first` gives a table for a case; `whole` its whole one, once, when that has been found after
    all.
    """

    def __init__(self, store: SplitCache) -> None:
        self._store = store
        self._lacking: SplitCase | None = None  # that there is only a first table of
        self._search: BackgroundSearch | None = None

    def first(
        self, case: SplitCase, bytes_per_s: float, report: Callable[[int], None] = lambda done: None
    ) -> SplitTable:
        """The whole table, where that was found before or is wanted at once.

        Else one that is right, if coarse.

        `report`: how many searches are done.

        Parameters
        ----------
        case
            What is divided, between whom.
        bytes_per_s
            The bandwidth of now.
        report
            Called with the number of searches done.
        """
        self.close()
        found = self._store.known(case.sharing, case.spec)
        if found is None and case.first:
            self._lacking = case
            return case.table(case.first_search(bytes_per_s, report))
        return case.table(found or self._store.found(case.sharing, case.spec, report))

    def full_table(self, case: SplitCase) -> SplitTable | None:
        """The whole table of this case, where it has been found since.

        Searches for it, if nobody does.
        """
        if self._lacking is not case:
            return None
        sharing, spec = case.sharing, case.spec
        if self._search is None:
            self._search = BackgroundSearch(sharing, spec, self._store.path(sharing, spec))
        if not self._search.over:
            return None
        found = self._search.found
        if found is None:  # somebody has ended it: the first table stays
            return None
        self.close()
        self._store.keep(sharing, spec, found)
        return case.table(found)

    @property
    def searched(self) -> Searched | None:
        """How far the search is; None where all is found."""
        lacking, search = self._lacking, self._search
        return (
            Searched(done=search.done if search else 0, most=lacking.spec.max_searches)
            if lacking
            else None
        )

    def close(self) -> None:
        """Stay with what there is."""
        self._lacking = None
        search = self._search
        self._search = None
        if search is not None:
            search.close()
