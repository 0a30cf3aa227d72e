"""The work of this device, with programs that others than its notebook asked for. Pure."""

from collections.abc import Callable, Iterator, Mapping

from potluck_agent.core.dependencies import DependencyGraph
from potluck_agent.core.execution import ASKED_STEP, Correspondent, Execution, Name, Unwanted
from potluck_agent.core.execution_engine import ExecutionEngine
from potluck_agent.core.receive_buffers import ChunkOutcome
from potluck_agent.core.waiting_executions import crowded
from potluck_wire.messages import HOME, Done, Failed, RefusalCode, Value


class RequestEngine(ExecutionEngine):
    """As `ExecutionEngine`. Of a request for a service, whoever asked has the notebook's part."""

    def begin_asked(
        self,
        name: Name,
        layout: DependencyGraph,
        peers: Mapping[str, Correspondent],
        ends: Callable[[Done | Failed, float], None],
        now_s: float,
    ) -> None:
        """Execute it once; `ends(answer, now_s)` hears how that went, and its notebook does not."""
        self._n_executions += 1
        execution = Execution(name, layout, self._owner, self._n_executions)
        execution.peers, execution.ends = peers, ends
        self._executions[name] = execution
        self._go_on(execution, execution.start(), now_s)

    def fail_asked(self, name: Name, cause: str, text: str, now_s: float) -> bool:
        """End it; False where it is over."""
        execution = self._executions.get(name)
        if execution is None:
            return False
        self._fail(execution, cause, text, now_s)
        return True

    def expect(self, key: str, value: Value) -> tuple[str, int] | None:
        """As `ExecutionEngine`. Of steps of requests, those under way alone take values."""
        if value.step >= ASKED_STEP and Name.of(value) not in self._executions:
            raise Unwanted(RefusalCode.UNKNOWN_RUN, "it is of no request that is under way")
        return super().expect(key, value)

    def apply(self, step: ChunkOutcome, now_s: float) -> None:
        """As `ExecutionEngine`. A request of which a value is rejected ends, and who asked hears
        that first.
        """
        for value, code, text in step.rejected:
            if value.step >= ASKED_STEP:
                self.fail_asked(Name.of(value), code, text, now_s)
        super().apply(step, now_s)

    def crowded(self, layout: DependencyGraph) -> str:
        """Why no further execution of this layout is begun; empty: one is."""
        return crowded(self._executions.values(), self._behind, layout) or self._worker.crowded()

    def under_way(self, run: str) -> Iterator[str]:
        """The programs of a run that are executed, each as often as it is; also of those that are
        over, and that the worker is at all the same.
        """
        names = dict.fromkeys((*self._executions, *self._compute_queue.with_worker))
        return (name.program for name in names if name.run == run)

    def is_unanswered(self, name: Name) -> bool:
        """Whether nothing has come yet but from who asked for it."""
        execution = self._executions.get(name)
        if execution is None:
            return False
        receives = execution.layout.receives.items()
        others = [value for value, (_, peer) in receives if peer != HOME]
        begun = self._incoming.arriving(name)
        return not any(execution.has_arrived(value) or value in begun for value in others)

    def send_again(self, name: Name, peer: str, to: Correspondent, now_s: float) -> None:
        """What was sent to `peer`, or would be, goes to another one in its place."""
        execution = self._executions[name]
        execution.peers = {**execution.peers, peer: to}
        self._outgoing.cancel((name,))
        for index in execution.unsent(peer):
            self._post(execution, index, now_s)
