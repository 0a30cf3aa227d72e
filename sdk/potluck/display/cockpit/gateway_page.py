"""The cockpit's page at the HTTP entrance of a home, to look at only: encrypted where the entrance
is, so for a phone on the sofa.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from potluck.display.cockpit.observed_home import ObservedHome
from potluck.display.cockpit.observer import CockpitObserver
from potluck.display.cockpit.page_files import HEADERS, LENGTH, page_files

if TYPE_CHECKING:
    from potluck.home import Home


class GatewayPage:
    """What the entrance serves: files, headers, and frames to whoever looks.

    Parameters
    ----------
    home
        Which is shown.
    """

    headers = HEADERS

    def __init__(self, home: "Home") -> None:
        self._watching = CockpitObserver(ObservedHome(home))
        self.files = page_files(may_act=False)

    def show(self, view: Callable[[bytes], None]) -> Callable[[], None]:
        """Give this view every frame from now on, behind its length; its result ends that."""
        return self._watching.show(lambda frame: view(LENGTH.pack(len(frame)) + frame))

    def close(self) -> None:
        """Look no more."""
        self._watching.close()
