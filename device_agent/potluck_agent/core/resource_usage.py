"""What a core holds of others' values and orders at this moment, in numbers. Pure.

All are 0 when nothing is under way: what stays above 0 then is a leak.
"""

from dataclasses import dataclass

from potluck_agent.core.send_queue import SendQueue
from potluck_agent.core.workspaces import Workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """`inbound_bytes`: of the inbound arena. `n_arriving`: values that come in.

    `n_leaving`: values that wait to be sent, or for their receiver.

    `n_early`: executions that values wait for before they begin; `n_early_instructions` is of their
    programs, `early_bytes` of those values, as the worker has them.

    `order_bytes`: about what waits until the worker comes to it. `n_asks`: requests for services.
    """

    inbound_bytes: int = 0
    n_arriving: int = 0
    n_leaving: int = 0
    n_early: int = 0
    n_early_instructions: int = 0
    early_bytes: int = 0
    order_bytes: int = 0
    n_asks: int = 0


def resource_usage(
    workspaces: Workspaces, outgoing: SendQueue, n_sinks: int, n_asks: int
) -> ResourceUsage:
    """What all notebooks have of one core.

    `n_sinks` values come in to be measured; `n_asks` requests for services are not answered.
    """
    present = list(workspaces)
    return ResourceUsage(
        inbound_bytes=sum(each.incoming.space.used_bytes for each in present),
        n_arriving=n_sinks + sum(each.incoming.n_arriving for each in present),
        n_leaving=outgoing.n_leaving,
        n_early=sum(len(each.work.early) for each in present),
        n_early_instructions=sum(each.work.early.n_instructions for each in present),
        early_bytes=sum(each.work.early.worker_bytes for each in present),
        order_bytes=sum(each.worker.behind_bytes for each in present),
        n_asks=n_asks,
    )
