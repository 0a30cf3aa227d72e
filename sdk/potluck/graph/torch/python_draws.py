"""Whether random numbers of Python and of numpy decide what a module gives: a graph has what they
were when it was traced.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from potluck.errors import ModelError
from potluck.graph.torch.attributes import same
from potluck.graph.torch.statefulness import called, spared

# Both draw by the Mersenne Twister, which gives the words of its state one after the other, each
# through the same permutation of bits. It has these for words of zeros and of ones.
_LEAST, _MOST = 0, 0x12DD9BB3
_N_WORDS, _N_SET = 624, 400  # the others are drawn: who draws again until it fits comes to an end
_N_DRAWN = 6


def check_draws(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModelError for a module that gives something else for other random numbers of Python or
    numpy. It may draw some for nothing, as for a layer that is left out with a probability of 0.
    """

    def given(words: Sequence[int]) -> list[Any]:
        with spared(module), _drawing(words) as drawn:
            leaves = tree_leaves(called(module, tensors))
        found.append(drawn())
        return leaves

    found: list[bool] = []
    usual = given(())
    if not found[0]:
        return
    for words in _states():
        leaves = given(words)
        if len(leaves) != len(usual) or not all(map(same, usual, leaves)):
            raise ModelError(
                "each call draws random numbers of Python or numpy (random, numpy.random), which "
                "devices would keep as they are.",
                next_step="Draw them by torch, as a tensor that the computation takes (torch.rand, "
                "torch.where); or outside the model, and pass them as an input.",
            )


def _states() -> Iterator[tuple[int, ...]]:
    """The words of some states: the least numbers are drawn, the largest, and others."""
    for seed in range(_N_DRAWN):
        drawn = random.Random(seed)
        words = tuple(drawn.getrandbits(32) for _ in range(_N_WORDS))
        if seed == 0:
            yield (_LEAST,) * _N_SET + words[_N_SET:]
            yield (_MOST,) * _N_SET + words[_N_SET:]
        yield words


@contextmanager
def _drawing(words: Sequence[int]) -> Iterator[Callable[[], bool]]:
    """Drawing begins with these words of the state, or as it would; yields what says afterwards
    whether any was drawn. It leaves both as they were.
    """
    before, of_numpy = random.getstate(), np.random.get_state(legacy=False)
    if words:
        random.setstate((before[0], (*words, 0), None))
        keys: Any = {"key": np.array(words, np.uint32), "pos": 0}
        np.random.set_state({"bit_generator": "MT19937", "state": keys})
    begun = _state()
    try:
        yield lambda: ended != begun
    finally:
        ended = _state()
        random.setstate(before)
        np.random.set_state(of_numpy)


def _state() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=False)
    return random.getstate(), repr(state)
