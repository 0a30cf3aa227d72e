"""What a core holds of others' values and orders at this moment, in numbers. Pure.

All are 0 when nothing is under way: what stays above 0 then is a leak.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
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
