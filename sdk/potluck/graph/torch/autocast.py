"""Calls under torch.autocast: its conversions depend on where a module is called, and devices make
those alone that are a part of the model (`mixed_precision`).
"""

import sys

from potluck.errors import ModelError

_KINDS = ("cpu", "cuda", "mps", "xpu")


def check_autocast(done: str) -> None:
    """Raise ModelError under `torch.autocast`; `done`: what is done there, as in "it is made".

    The types of a graph are those of the module when it was made: nothing that is switched on later
    could change them.
    """
    torch = sys.modules.get("torch")  # who has not imported it has not switched anything on
    on = [kind for kind in _KINDS if torch is not None and torch.is_autocast_enabled(kind)]
    if on:
        raise ModelError(
            f"{done} under torch.autocast({on[0]!r}), whose conversions devices do not make.",
            next_step="Do it outside that block: Model.from_torch(net, ..., autocast='bfloat16') "
            "makes them a part of the model, and one of net.to(torch.bfloat16) computes all in "
            "bfloat16.",
        )
