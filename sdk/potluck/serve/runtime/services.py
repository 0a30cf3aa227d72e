"""All services of a home by name, as they are at this moment; shows itself as a table."""

from collections.abc import Iterator, Mapping

from potluck.display_hooks import Tabular
from potluck.serve.runtime.service import Service


class Services(Tabular, Mapping[str, Service]):
    """What `home.services` gives.

    Parameters
    ----------
    found
        The services by name.
    """

    def __init__(self, found: Mapping[str, Service]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Service:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
