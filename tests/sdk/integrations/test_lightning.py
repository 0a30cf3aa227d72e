"""`HomeStrategy` against Lightning's own: the same losses, validations and weights."""

import warnings

import pytest

from potluck.errors import UserError

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")

from potluck.integrations.lightning import HomeStrategy  # noqa: E402 - needs what is asked for

ROWS, BATCH = 48, 8

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(lightning.LightningModule):
    """Batches are mappings; the rate changes with every step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
        self.head = torch.nn.Linear(16, 4)

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.head(self.body(batch["x"])), batch["y"])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.2, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Autoencoder(Net):
    """Its batches are one tensor, and it has no validation."""

    def training_step(self, batch, batch_idx):
        return {"loss": (self.body(batch).mean(1) - batch.mean(1)).square().mean()}

    validation_step = None


class Heard(lightning.Callback):
    """Losses and validations as callbacks see them."""

    def __init__(self):
        self.losses, self.validations = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def on_validation_end(self, trainer, module):
        self.validations.append(float(trainer.callback_metrics["val_loss"]))


def loader(rows=ROWS, *, alone=False):
    torch.manual_seed(1)
    x, y = torch.randn(rows, 8), torch.randint(0, 4, (rows,))
    data = list(x) if alone else [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    return torch.utils.data.DataLoader(data, batch_size=BATCH)


def trained(net, folder, *, data=None, checkpoint=None, **given):
    heard = Heard()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[heard, lightning.callbacks.ModelCheckpoint(folder, save_top_k=-1)],
        **given,
    )
    validation = loader() if net.validation_step is not None else None
    trainer.fit(net, data or loader(), validation, ckpt_path=checkpoint)
    return heard


def check_weights(ours, theirs):
    weights = theirs.state_dict()
    for name, weight in ours.state_dict().items():
        assert torch.allclose(weight, weights[name], atol=1e-6), name


@pytest.mark.parametrize(
    "settings",
    [{"gradient_clip_val": 0.5}, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}],
)
def test_a_strategy_of_a_home_learns_what_lightning_does(pair, on_both, tmp_path, settings):
    theirs, ours = Net(), Net()
    alone = trained(theirs, tmp_path / "a", devices=1, **settings)
    strategy = HomeStrategy(pair, choose=on_both)
    heard = trained(ours, tmp_path / "b", strategy=strategy, **settings)
    assert heard.losses == pytest.approx(alone.losses, rel=1e-5)
    assert heard.validations == pytest.approx(alone.validations, rel=1e-5)
    check_weights(ours, theirs)
    assert len(strategy.home_run.plan.devices) == 2


def test_it_goes_on_from_a_checkpoint_with_the_moments_of_the_devices(pair, on_both, tmp_path):
    theirs, ours = Net(), Net()
    trained(theirs, tmp_path / "a", devices=1, accumulate_grad_batches=2)
    strategy = HomeStrategy(pair, choose=on_both)
    trained(ours, tmp_path / "b", strategy=strategy, accumulate_grad_batches=2)
    check_weights(ours, theirs)
    again = Net()
    trained(
        again,
        tmp_path / "c",
        strategy=HomeStrategy(pair, choose=on_both),
        accumulate_grad_batches=2,
        checkpoint=tmp_path / "b" / "epoch=0-step=3.ckpt",
    )
    check_weights(again, theirs)


def test_a_batch_may_be_one_tensor_and_a_step_give_a_mapping(pair, on_both, tmp_path):
    theirs, ours = Autoencoder(), Autoencoder()
    data = loader(alone=True)
    alone = trained(theirs, tmp_path / "a", devices=1, data=data)
    heard = trained(ours, tmp_path / "b", strategy=HomeStrategy(pair, choose=on_both), data=data)
    assert heard.losses == pytest.approx(alone.losses, rel=1e-5)
    check_weights(ours, theirs)


def test_steps_of_unlike_batches_are_said_not_to_be_lightnings(pair, on_both, tmp_path):
    strategy = HomeStrategy(pair, choose=on_both)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(Net(), tmp_path, data=loader(44), strategy=strategy, accumulate_grad_batches=2)
    assert sum("8, 4 rows" in str(each.message) for each in said) == 1


def test_what_devices_cannot_do_is_refused(pair, tmp_path):
    manual = Net()
    manual.automatic_optimization = False
    with pytest.raises(UserError, match="automatic"):
        trained(manual, tmp_path, strategy=HomeStrategy(pair))
    with pytest.raises(UserError, match="bf16"):
        trained(Net(), tmp_path, strategy=HomeStrategy(pair), precision="bf16-mixed")
    words = torch.utils.data.DataLoader([("a", torch.zeros(8))] * 8, batch_size=4)
    with pytest.raises(UserError, match="made of tensors"):
        trained(Net(), tmp_path, data=words, strategy=HomeStrategy(pair))
