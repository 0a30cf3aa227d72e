"""What has happened in a home, told once each: who joined, was lost or left, and what a run has
decided. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.sessions.members import Member

DECIDED = {"order": "ordered", "switch": "switched", "failed": "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One thing that happened, for people. `kind` chooses its mark."""

    kind: str
    words: str


class HomeEvents:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._status: dict[str, str] = {}
        self._reported: dict[
            int, tuple[int, ...]
        ] = {}  # by run: if it ended, and how much was told
        self._given = ""

    def look(self, observation: CockpitObservation) -> list[News]:
        """What is new; of what is only imagined, nothing happens."""
        if observation.run is not None and observation.run.is_imagined:
            return []
        before, self._given = self._given, observation.given
        given = [News(kind="left", words=self._given)] if self._given != before else []
        return [*self._members(observation.members), *self._of_run(observation.run), *given]

    def _members(self, members: Iterable[Member]) -> list[News]:
        now = {member.name: member for member in members}
        news = []
        for name, member in now.items():
            before = self._status.get(name)
            if member.status != before:
                news.append(_news_of(member, before))
        news += [
            News(kind="left", words=f"{name} was forgotten")
            for name in self._status
            if name not in now
        ]
        self._status = {name: member.status for name, member in now.items()}
        return news

    def _of_run(self, run: RunObservation | None) -> list[News]:
        if run is None:
            return []
        news = []
        reported = self._reported.get(run.number, (0,) * 5)
        if run.number not in self._reported:
            who = ", ".join(run.plan.devices)
            news.append(News(kind="run", words=f"{run.plan.model} is deployed on {who}"))
        if run.ended and not reported[0]:
            news.append(News(kind="failed", words=f"the run has ended: {run.ended}"))
        its = run.history
        news += [News(kind="lost", words=r.words) for r in its.recoveries[reported[1] :]]
        news += [News(kind="left", words=d.words) for d in its.departures[reported[2] :]]
        news += [News(kind="joined", words=a.words) for a in its.arrivals[reported[3] :]]
        news += [
            News(kind=DECIDED.get(d.action, "decided"), words=d.words)
            for d in its.decisions[reported[4] :]
        ]
        lengths = map(len, (its.recoveries, its.departures, its.arrivals, its.decisions))
        self._reported[run.number] = (int(bool(run.ended)), *lengths)
        return news


def _news_of(member: Member, before: str | None) -> News:
    why = member.leaving or (str(member.error) if member.error is not None else "")
    reason = f": {why}" if why and member.status not in ("ready", "not paired") else ""
    if member.status == "ready":
        return News(kind="joined", words=f"{member.name} is {'back' if before else 'there'}")
    kind = "lost" if member.status in ("gone", "not there") else "said"
    return News(kind=kind, words=f"{member.name} is {member.status}{reason}")
