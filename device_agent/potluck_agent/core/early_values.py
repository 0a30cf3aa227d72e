"""Values that came before their execution began: a device that is ahead sends them. Pure."""

from dataclasses import dataclass

from potluck_agent.core.dependencies import DependencyGraph
from potluck_agent.core.execution import EarlyValue, Name
from potluck_wire.limits import MAX_UNDER_WAY
from potluck_wire.messages import Value

MAX_EARLY = 1024  # executions that values came for before they began


@dataclass(slots=True)
class _Waiting:
    n_instructions: int  # of its program: no more values can come for it
    values: dict[str, EarlyValue]


class EarlyValues:
    """By execution. `memory_bytes`: so many bytes of them the worker may hold."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._waiting: dict[Name, _Waiting] = {}
        self.n_instructions = 0  # of the programs of those executions
        self.worker_bytes = 0  # of those values, as the worker has them

    def __len__(self) -> int:
        """Executions that values wait for."""
        return len(self._waiting)

    def has(self, name: Name, value: str) -> bool:
        """Whether this value waits here."""
        waiting = self._waiting.get(name)
        return waiting is not None and value in waiting.values

    def crowded(self, name: Name, layout: DependencyGraph, value: Value) -> str:
        """Why no further value is kept for this execution; empty: it is.

        A notebook's executions have that many instructions at most, all together, and so many
        values can come for them; what the worker could not hold it need not take.
        """
        if name not in self._waiting and self._waiting:
            if len(self._waiting) >= MAX_EARLY:
                return f"values for {MAX_EARLY} executions wait already"
            if self.n_instructions + layout.n_instructions > MAX_UNDER_WAY:
                n_wait = self.n_instructions
                return f"values for executions of {n_wait} instructions wait already"
        worker_bytes = value.nbytes if layout.uses.get(value.name) else 0
        if self.worker_bytes and self.worker_bytes + worker_bytes > self._memory_bytes:
            return f"early values of {self.worker_bytes} bytes wait already"
        return ""

    def put(self, name: Name, layout: DependencyGraph, value: str, early: EarlyValue) -> None:
        """Keep it until its execution begins."""
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = _Waiting(layout.n_instructions, {})
            self.n_instructions += layout.n_instructions
        waiting.values[value] = early
        self.worker_bytes += early.worker_bytes

    def take(self, name: Name) -> dict[str, EarlyValue]:
        """All of this execution, in the order they came."""
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return {}
        self.n_instructions -= waiting.n_instructions
        self.worker_bytes -= sum([early.worker_bytes for early in waiting.values.values()])
        return waiting.values

    def of_epoch(self, run: str, epoch: int) -> list[Name]:
        """The executions of an epoch that values wait for."""
        return [name for name in self._waiting if name[:2] == (run, epoch)]

    def clear(self) -> None:
        """The worker is gone, and they with it."""
        self._waiting.clear()
        self.n_instructions = self.worker_bytes = 0
