"""The members that all notebooks name together: who is one, and where, told when it has changed.
Pure.
"""

from potluck_agent.core.events import Buffer, PeerDevice
from potluck_agent.core.members import read_roster
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.sessions import NotebookSession, crowded_out, known_members
from potluck_agent.core.workspaces import Workspaces
from potluck_wire.errors import WireError
from potluck_wire.messages import Message, RefusalCode, Roster


class Rosters:
    """`sessions` and `workspaces` are those of the core; `members` by their keys."""

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        sessions: dict[str, NotebookSession],
        workspaces: Workspaces,
    ) -> None:
        self._settings, self._out = settings, out
        self._sessions, self._workspaces = sessions, workspaces
        self.members: dict[str, PeerDevice] = {}

    def take(self, key: str, message: Roster, document: Buffer) -> bool:
        """The members of a notebook's home, all of them each time; False: that was refused."""
        session = self._sessions[key]
        before = session.members
        try:
            named = read_roster(document, self._sessions)
        except WireError as error:
            self._out.refuse(key, message, RefusalCode.DOCUMENT, error.text)
            return False
        session.members = {m.name: m for m in named if m.key != self._settings.key}
        if self.refuses(key, message):
            session.members = before
            return False
        return True

    def refuses(self, key: str, message: Message) -> bool:
        """Whether this is not done because not all devices that the notebook names can be members;
        then that is the answer.
        """
        owners, askers = self._workspaces.owners, self._workspaces.askers
        most = self._settings.most_links
        crowded = crowded_out(self._sessions, key, owners, askers, self.members, most)
        if crowded:
            self._out.refuse(key, message, RefusalCode.BUSY, crowded)
        return bool(crowded)

    def renew(self) -> tuple[dict[str, PeerDevice], dict[str, PeerDevice]]:
        """Something that decides has changed: the members before, and now."""
        owners, askers = self._workspaces.owners, self._workspaces.askers
        before, most = self.members, self._settings.most_links
        self.members = known_members(self._sessions, owners, askers, before, most)
        return before, self.members
