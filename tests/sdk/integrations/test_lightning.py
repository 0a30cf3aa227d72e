"""`HomeStrategy` against Lightning's own: the same losses, validations and weights."""

import warnings

import pytest

from potluck.errors import UserError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def made():
    """Modules of Lightning."""
    pytest.importorskip("lightning.pytorch")
    from tests.sdk.integrations import lightning_modules

    return lightning_modules


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [{"gradient_clip_val": 0.5}, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}],
)
def test_a_strategy_of_a_home_learns_what_lightning_does(made, pair, on_both, tmp_path, settings):
    theirs, ours = made.Net(), made.Net()
    alone = made.trained(theirs, tmp_path / "a", devices=1, **settings)
    strategy = made.HomeStrategy(pair, choose=on_both)
    heard = made.trained(ours, tmp_path / "b", strategy=strategy, **settings)
    assert heard.losses == pytest.approx(alone.losses, rel=1e-5)
    assert heard.validations == pytest.approx(alone.validations, rel=1e-5)
    made.check_weights(ours, theirs)
    assert len(strategy.home_run.plan.devices) == 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_is_logged_as_its_step_says_and_what_is_none_is_named(
    made, pair, on_both, tmp_path, accumulate
):
    theirs, ours = made.Logs(), made.Logs()
    settings = {"accumulate_grad_batches": accumulate, "data": made.loader(drop_last=True)}
    made.trained(theirs, tmp_path / "a", devices=1, **settings)
    strategy = made.HomeStrategy(pair, choose=on_both)
    with pytest.warns(UserWarning, match="'largest' is left out"):
        made.trained(ours, tmp_path / "b", strategy=strategy, **settings)
    assert len(ours.epochs) == len(theirs.epochs) == 2
    for mine, its in zip(ours.epochs, theirs.epochs, strict=True):
        assert float(mine["by_epoch"]) == pytest.approx(float(its["by_epoch"]), rel=1e-5)
        assert "largest" not in mine
        if accumulate == 1:
            assert float(mine["train_loss"]) == pytest.approx(float(its["train_loss"]), rel=1e-5)


@pytest.mark.long
def test_it_goes_on_from_a_checkpoint_with_the_moments_of_the_devices(
    made, pair, on_both, tmp_path
):
    theirs, ours = made.Net(), made.Net()
    made.trained(theirs, tmp_path / "a", devices=1, accumulate_grad_batches=2)
    strategy = made.HomeStrategy(pair, choose=on_both)
    made.trained(ours, tmp_path / "b", strategy=strategy, accumulate_grad_batches=2)
    made.check_weights(ours, theirs)
    again = made.Net()
    made.trained(
        again,
        tmp_path / "c",
        strategy=made.HomeStrategy(pair, choose=on_both),
        accumulate_grad_batches=2,
        checkpoint=tmp_path / "b" / "epoch=0-step=3.ckpt",
    )
    made.check_weights(again, theirs)


@pytest.mark.long
def test_a_batch_may_be_one_tensor_and_a_step_give_a_mapping(made, pair, on_both, tmp_path):
    theirs, ours = made.Autoencoder(), made.Autoencoder()
    data = made.loader(alone=True)
    alone = made.trained(theirs, tmp_path / "a", devices=1, data=data)
    heard = made.trained(
        ours, tmp_path / "b", strategy=made.HomeStrategy(pair, choose=on_both), data=data
    )
    assert heard.losses == pytest.approx(alone.losses, rel=1e-5)
    made.check_weights(ours, theirs)


@pytest.mark.long
def test_a_batch_may_be_what_a_tokenizer_gives(made, pair, on_both, tmp_path):
    theirs, ours = made.Encoded(), made.Encoded()
    data = made.loader(collate_fn=made.Encoded.encoded)
    alone = made.trained(theirs, tmp_path / "a", devices=1, data=data)
    heard = made.trained(
        ours, tmp_path / "b", strategy=made.HomeStrategy(pair, choose=on_both), data=data
    )
    assert heard.losses == pytest.approx(alone.losses, rel=1e-5)
    made.check_weights(ours, theirs)


@pytest.mark.long
def test_steps_of_unlike_batches_are_said_not_to_be_lightnings(made, pair, on_both, tmp_path):
    strategy = made.HomeStrategy(pair, choose=on_both)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.trained(
            made.Net(), tmp_path, data=made.loader(44), strategy=strategy, accumulate_grad_batches=2
        )
    assert sum("8, 4 rows" in str(each.message) for each in caught) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "words"),
    [({"reduction": "sum"}, "is a sum over rows"), ({"ignore_index": 2}, "rows count differently")],
)
def test_accumulated_losses_that_are_no_plain_means_are_not_lightnings(
    made, pair, on_both, tmp_path, settings, words
):
    class Scored(made.Net):
        def loss(self, batch):
            scores = self.head(self.body(batch["x"]))
            return torch.nn.functional.cross_entropy(scores, batch["y"], **settings)

    strategy = made.HomeStrategy(pair, choose=on_both)
    is_sum = "reduction" in settings
    told = pytest.raises(UserError, match=words) if is_sum else pytest.warns(match=words)
    with told:
        made.trained(Scored(), tmp_path, strategy=strategy, accumulate_grad_batches=2)


@pytest.mark.long
@pytest.mark.parametrize("accumulate", [1, 2])
def test_that_batch_norm_sees_other_rows_of_accumulated_batches_is_said(
    made, pair, on_both, tmp_path, accumulate
):
    class Normed(made.Net):
        def __init__(self):
            super().__init__()
            self.body.append(torch.nn.BatchNorm1d(16))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy = made.HomeStrategy(pair, choose=on_both)
        made.trained(Normed(), tmp_path, strategy=strategy, accumulate_grad_batches=accumulate)
    told = [each for each in caught if "batch norm normalises the rows" in str(each.message)]
    assert len(told) == accumulate - 1


def test_what_devices_cannot_do_is_refused(made, pair, tmp_path):
    manual = made.Net()
    manual.automatic_optimization = False
    with pytest.raises(UserError, match="automatic"):
        made.trained(manual, tmp_path, strategy=made.HomeStrategy(pair))
    with pytest.raises(UserError, match="bf16"):
        made.trained(made.Net(), tmp_path, strategy=made.HomeStrategy(pair), precision="bf16-mixed")
    words = torch.utils.data.DataLoader([("a", torch.zeros(8))] * 8, batch_size=4)
    with pytest.raises(UserError, match="made of tensors"):
        made.trained(made.Net(), tmp_path, data=words, strategy=made.HomeStrategy(pair))


@pytest.mark.few(2)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "look",
    [
        lambda scores: scores.argmax(1),
        lambda scores: torch.cat([scores]),
        lambda scores: torch.softmax(scores, 1),
        lambda scores: torch.as_tensor(scores),
        lambda scores: scores[0],
        lambda scores: scores * 2,
        list,
        float,
        len,
    ],
)
def test_what_a_step_gives_beside_its_loss_is_refused_by_name_where_it_is_used(
    made, pair, on_both, tmp_path, look, accumulate
):
    settings = {"accumulate_grad_batches": accumulate}
    net = made.Scores(look)
    with pytest.raises(UserError, match="'scores' of what training_step gives"):
        made.trained(net, tmp_path, strategy=made.HomeStrategy(pair, choose=on_both), **settings)
    assert net.n_batches == 1
    unseen = made.Scores(repr)
    made.trained(unseen, tmp_path, strategy=made.HomeStrategy(pair, choose=on_both), **settings)
    assert unseen.n_batches == 2 * made.ROWS // made.BATCH
