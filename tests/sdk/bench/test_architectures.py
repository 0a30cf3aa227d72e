"""Architectures of transformers that nobody chose by hand, over two agents as on one machine.

The kinds of models that AutoModel knows stand in alphabetical order, so that kin are neighbours.
From each fortieth of them on, the first is tried that can be made small, calls few operators, and
reads no number of its data.
"""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 - of torch

SAMPLES = 40
QUICK = {2, 6, 8, 12, 14, 16, 22, 24, 26, 36}  # below five seconds each: these are in `make test`
MAX_OPERATORS = 200  # those of more take up to a minute


class Called(TorchDispatchMode):
    """The operators that are called while it lasts."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators.append(operator)
        return operator(*args, **(kwargs or {}))


def drawn(number):
    """The first architecture from that fortieth on; None where there is none."""
    from potluck.bench import small_architectures  # seconds: not where tests are only collected

    names = small_architectures.names()
    start = number * len(names) // SAMPLES
    made = (small_architectures.made(name) for name in names[start:])
    return next((one for one in made if one is not None and is_small(one)), None)


def is_small(architecture):
    with torch.no_grad(), Called() as called:
        architecture.net(*architecture.inputs.values())
    of_data = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    reads = any(of_data & set(operator.tags) for operator in called.operators)
    return len(called.operators) <= MAX_OPERATORS and not reads


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in range(SAMPLES)],
)
def test_an_architecture_answers_and_trains_on_two_agents_as_on_one_machine(number, home):
    pytest.importorskip("transformers")
    from potluck.bench.architecture_trials import tried

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        architecture = drawn(number)
        if architecture is None:
            pytest.skip("none of them can be made small")
        outcome = tried(architecture, home)
    if not outcome.exports:
        pytest.skip(f"torch.export does not take {architecture.name}")
    assert (outcome.refused, outcome.untrained) == ("", ""), architecture.name
    assert outcome.equal, architecture.name
    assert outcome.trained, architecture.name
