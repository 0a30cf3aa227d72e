"""When the device has to leave: who is told, what is not taken any more, and when it is over. Pure.

Notebooks move what they run here elsewhere and drop it. Those that cannot know, because their
version has no `Leaving`, are not waited for.
"""

from collections.abc import Collection, Iterable
from typing import Any

from potluck_agent.core.events import MayStay, MustLeave
from potluck_agent.core.outbox import Outbox
from potluck_wire.limits import clip
from potluck_wire.messages import Leaving, Measure, Message, Prepare, RefusalCode, Staying
from potluck_wire.version import LEAVING, VERSION


class GracefulLeave:
    """`reason`: why the device has to leave; empty: it stays. `has_left`: the agent is to end."""

    def __init__(self) -> None:
        self.reason = ""
        self.has_left = False
        self._until_s = float("inf")
        self._for_good = False

    def receive(
        self, out: Outbox, event: MustLeave | MayStay, sessions: Iterable[str], now_s: float
    ) -> None:
        """The device has to leave, or need not any more: these sessions are told."""
        if isinstance(event, MustLeave):
            self._begin(out, event, sessions, now_s)
        elif self.reason and not self._for_good:
            self.reason, self._until_s = "", float("inf")
            self._notify(out, Staying(), sessions)

    def _begin(self, out: Outbox, event: MustLeave, sessions: Iterable[str], now_s: float) -> None:
        """The device has to leave; a second reason gives no more time than the first.

        Once it leaves for good, no other reason matters.
        """
        if self._for_good and not event.for_good:
            return
        until_s = now_s + event.within_s
        self._until_s = min(self._until_s, until_s) if self.reason else until_s
        self._for_good = event.for_good
        self.reason = clip(event.reason)
        within_s = max(0.0, self._until_s - now_s)
        self._notify(out, Leaving(reason=self.reason, within_s=within_s), sessions)

    def stated(self, statement: dict[str, Any]) -> dict[str, Any]:
        """The capability statement with why it leaves."""
        return {**statement, "leaving": self.reason}

    def _notify(self, out: Outbox, message: Message, sessions: Iterable[str]) -> None:
        for key in sessions:
            if knows(out, key):
                out.send(key, message)

    def refuses(self, out: Outbox, key: str, message: Message, runs: Collection[str]) -> bool:
        """Whether this is not done because the device leaves; then that is the answer.

        An epoch more of a run that is here is taken: it may be the way to elsewhere.
        """
        is_new = isinstance(message, Measure) or (
            isinstance(message, Prepare) and message.run not in runs
        )
        if not self.reason or not is_new:
            return False
        text = clip(f"it wants to leave: {self.reason}")
        out.refuse(key, message, RefusalCode.LEAVING, text)
        return True

    def ends(
        self,
        out: Outbox,
        sessions: Collection[str],
        owners: Collection[str],
        at_work: Collection[str],
        now_s: float,
    ) -> tuple[str, ...]:
        """The sessions that end now, of those of which `owners` have runs here, and for those
        `at_work` something is done.
        """
        if not self.reason:
            return ()
        is_late = now_s >= self._until_s
        if self._for_good and (is_late or not any(knows(out, key) for key in owners)):
            self.has_left = True
            return tuple(sessions)
        return tuple(key for key in sessions if key in at_work) if is_late else ()


def knows(out: Outbox, key: str) -> bool:
    """Whether this notebook's version has `Leaving`."""
    return out.versions.get(key, VERSION) >= LEAVING
