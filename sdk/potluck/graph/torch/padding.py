"""What torch answers at padded places depends on whether gradients are on: without them its encoder
takes a fast path over nested tensors that leaves zeros there. A graph has what the layers compute.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def padded_encoders(net: torch.nn.Module) -> Iterator[list[str]]:
    """The names of the encoders in `net` that get a padding mask while this lasts, and would leave
    zeros where it says so.

    Parameters
    ----------
    net
        Is called meanwhile.
    """
    found: list[str] = []

    def note(name: str, encoder: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named.get("src_key_padding_mask", given[2] if len(given) > 2 else None)
        if mask is not None and encoder.use_nested_tensor and name not in found:
            found.append(name)

    handles = [
        module.register_forward_pre_hook(
            lambda encoder, given, named, name=name: note(name, encoder, given, named),
            with_kwargs=True,
        )
        for name, module in net.named_modules()
        if isinstance(module, torch.nn.TransformerEncoder)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
