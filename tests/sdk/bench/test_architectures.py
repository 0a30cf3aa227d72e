"""Architectures of transformers that nobody chose by hand, over two agents as on one machine.

The kinds of models that AutoModel knows stand in alphabetical order, so that kin are neighbours. Of
each fortieth of them, the first that can be made small is tried.
"""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from potluck.bench import small_architectures  # noqa: E402 - it needs transformers
from potluck.bench.architecture_trials import tried  # noqa: E402

SAMPLES = 40
# by what they are, why some are refused; each is right
REFUSED: dict[str, str] = {}


def drawn(number):
    """The first architecture of that fortieth."""
    names = small_architectures.names()
    start, stop = (i * len(names) // SAMPLES for i in (number, number + 1))
    made = (small_architectures.made(name) for name in names[start:stop])
    return next((architecture for architecture in made if architecture is not None), None)


@pytest.mark.few(10)
@pytest.mark.parametrize("number", range(SAMPLES))
def test_an_architecture_answers_and_trains_on_two_agents_as_on_one_machine(number, home):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        architecture = drawn(number)
        if architecture is None:
            pytest.skip("none of them can be made small")
        outcome = tried(architecture, home)
    if architecture.name in REFUSED:
        assert REFUSED[architecture.name] in outcome.refused + outcome.untrained
    else:
        assert (outcome.refused, outcome.untrained) == ("", "")
        assert outcome.equal
        assert outcome.trained
