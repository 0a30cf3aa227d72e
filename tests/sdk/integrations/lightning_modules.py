"""Modules and callbacks of Lightning, and a training of its own. Apart from the tests, as Lightning
takes seconds to import: not where tests are only collected.
"""

import lightning.pytorch as lightning
import torch
from transformers import BatchEncoding

from potluck.integrations.lightning import HomeStrategy as HomeStrategy

ROWS, BATCH = 48, 8


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


class Logs(Net):
    """Logs its loss in several ways, and what is no loss."""

    def training_step(self, batch, batch_idx):
        scores = self.head(self.body(batch["x"]))
        loss = torch.nn.functional.cross_entropy(scores, batch["y"])
        self.log("by_epoch", loss, on_step=False, on_epoch=True, batch_size=len(scores))
        self.log_dict({"train_loss": loss, "largest": scores.max()}, prog_bar=True)
        return {"loss": loss}

    def on_train_epoch_end(self):
        self.epochs = [*getattr(self, "epochs", ()), dict(self.trainer.callback_metrics)]


class Scores(Net):
    """Gives its scores to hooks, one of which looks at them."""

    def __init__(self, look=None):
        super().__init__()
        self.look, self.n_batches = look, 0

    def training_step(self, batch, batch_idx):
        scores = self.head(self.body(batch["x"]))
        loss = torch.nn.functional.cross_entropy(scores, batch["y"])
        return {"loss": loss, "again": loss, "scores": scores}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.n_batches += 1
        n_batches = self.trainer.accumulate_grad_batches  # by which Lightning divides a loss
        assert float(outputs["again"]) == n_batches * float(outputs["loss"])
        if self.look is not None:
            self.look(outputs["scores"])


class Encoded(Net):
    """Its batches are what a tokenizer of transformers gives: mappings whose parts are attributes,
    too.
    """

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self.head(self.body(batch.x)), batch["y"])

    validation_step = None

    @staticmethod
    def encoded(rows):
        """A batch of these rows."""
        return BatchEncoding(torch.utils.data.default_collate(rows))


class Heard(lightning.Callback):
    """Losses and validations as callbacks see them."""

    def __init__(self):
        self.losses, self.validations = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def on_validation_end(self, trainer, module):
        self.validations.append(float(trainer.callback_metrics["val_loss"]))


def loader(rows=ROWS, *, alone=False, **more):
    torch.manual_seed(1)
    x, y = torch.randn(rows, 8), torch.randint(0, 4, (rows,))
    data = list(x) if alone else [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    return torch.utils.data.DataLoader(data, batch_size=BATCH, **more)


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
