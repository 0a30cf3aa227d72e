"""What a module or a callback of Lightning does around its steps: the weights are those that
Lightning learns by itself, or it is refused by name.
"""

import pytest

from potluck.errors import PotluckError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = (
    *("another order", "epoch", "batch_idx", "attribute", "gradients", "weights", "looks"),
    *("no batch_idx", "notes", "a warm-up of its own", "averages", "averages of epochs", "step"),
    *("trainer", "a step left out by batch_idx", "attribute of the class", "tensor", "buffer"),
    *("attribute of a part", "mode", "freezes", "clipping", "gradients in a callback"),
    *("a step left out", "weights after an epoch", "weights in another order", "two steps"),
    *("looks before gradients are zero", "looks before the backward", "looks before the step"),
    *("gradients are zeroed", "gradients are kept", "a rate by the loss"),
    *("a rate before the backward", "outside"),
)


@pytest.fixture(scope="module")
def made():
    """Modules of Lightning."""
    pytest.importorskip("lightning.pytorch")
    from tests.sdk.integrations import changing_modules

    return changing_modules


def test_each_case_is_tried(made):
    assert {*NAMES} == {*made.AROUND_A_STEP}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_lightning_or_it_is_refused_by_name(made, pair, on_both, name):
    from potluck.integrations.lightning import HomeStrategy

    says = made.AROUND_A_STEP[name][2]
    strategy = HomeStrategy(pair, choose=on_both)
    try:
        if says:
            with pytest.raises(PotluckError, match=f"(?s){says}"):
                made.trained(name, strategy=strategy)
        else:
            ours, theirs = made.trained(name, strategy=strategy), made.trained(name, devices=1)
            weights = theirs.state_dict()
            for key, weight in ours.state_dict().items():
                assert torch.allclose(weight, weights[key], atol=1e-6), key
    finally:
        if strategy.home_run is not None:
            strategy.home_run.close()
