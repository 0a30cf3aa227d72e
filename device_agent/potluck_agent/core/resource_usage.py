"""What a core holds of others' values and orders at this moment, in numbers. Pure.

All are 0 when nothing is under way: what stays above 0 then is a leak.
"""

from dataclasses import dataclass

from potluck_agent.core.early_values import EarlyValues
from potluck_agent.core.receive_buffers import ReceiveBuffers
from potluck_agent.core.send_queue import SendQueue
from potluck_agent.core.worker_proxy import WorkerProxy


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """`inbound_bytes`: of the inbound arena. `n_arriving`: values that come in.

    `n_leaving`: values that wait to be sent, or for their receiver.

    `n_early`: executions that values wait for before they begin; `n_early_instructions` is of their
    programs, `early_bytes` of those values, as the worker has them.

    `order_bytes`: about what waits until the worker comes to it.
    """

    inbound_bytes: int = 0
    n_arriving: int = 0
    n_leaving: int = 0
    n_early: int = 0
    n_early_instructions: int = 0
    early_bytes: int = 0
    order_bytes: int = 0


def resource_usage(
    incoming: ReceiveBuffers, outgoing: SendQueue, early: EarlyValues, worker: WorkerProxy
) -> ResourceUsage:
    """What these parts of one core hold."""
    return ResourceUsage(
        inbound_bytes=incoming.space.used_bytes,
        n_arriving=incoming.n_arriving,
        n_leaving=outgoing.n_leaving,
        n_early=len(early),
        n_early_instructions=early.n_instructions,
        early_bytes=early.worker_bytes,
        order_bytes=worker.behind_bytes,
    )
