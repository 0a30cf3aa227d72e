"""Executions that are asked for and wait behind another one of their program, which goes on
meanwhile. Pure.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from potluck_agent.core.dependencies import DependencyGraph
from potluck_agent.core.execution import Execution, Name
from potluck_wire.limits import MAX_EXECUTIONS, MAX_UNDER_WAY
from potluck_wire.messages import Execute


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """What was asked for, and by whom."""

    name: Name
    key: str
    message: Execute
    n_instructions: int


class WaitingExecutions:
    """Each waits for one other, several may wait for the same, and whoever waits may itself be
    waited for.
    """

    def __init__(self) -> None:
        self._asks: dict[
            Name, list[ExecutionRequest]
        ] = {}  # by the execution ahead, in the order they came
        self._ahead: dict[Name, Name] = {}

    def __len__(self) -> int:
        return len(self._ahead)

    @property
    def n_instructions(self) -> int:
        """Of all that waits."""
        return sum(ask.n_instructions for asks in self._asks.values() for ask in asks)

    def __contains__(self, name: Name) -> bool:
        return name in self._ahead

    def put(self, ask: ExecutionRequest, ahead: Name) -> None:
        """This one waits from now on."""
        self._ahead[ask.name] = ahead
        self._asks.setdefault(ahead, []).append(ask)

    def take(self, ahead: Name) -> list[ExecutionRequest]:
        """Those that waited for this one, and do so no more."""
        asks = self._asks.pop(ahead, [])
        for ask in asks:
            del self._ahead[ask.name]
        return asks

    def take_all(self, ahead: Name) -> Iterator[tuple[Name, ExecutionRequest]]:
        """All that cannot begin any more, as this one failed, and those behind them.

        Each with the one ahead of it.
        """
        failed = [ahead]
        while failed:
            name = failed.pop(0)
            for ask in self.take(name):
                yield name, ask
                failed.append(ask.name)

    def forget(self, name: Name) -> None:
        """This one does not wait any more; those behind it still do."""
        ahead = self._ahead.pop(name, None)
        if ahead is not None:
            asks = [ask for ask in self._asks.pop(ahead) if ask.name != name]
            if asks:
                self._asks[ahead] = asks


def crowded(
    under_way: Collection[Execution], behind: WaitingExecutions, layout: DependencyGraph
) -> str:
    """Why no further execution is begun or waits, of a program of that layout; empty: one does."""
    n_executions = len(under_way) + len(behind)
    n_instructions = (
        sum([execution.layout.n_instructions for execution in under_way]) + behind.n_instructions
    )
    is_too_much = n_executions > 0 and n_instructions + layout.n_instructions > MAX_UNDER_WAY
    if not is_too_much and n_executions < MAX_EXECUTIONS:
        return ""
    text = f"{n_executions} executions of {n_instructions} instructions are under way or wait"
    return f"{text}; ask again when one of them is over"
