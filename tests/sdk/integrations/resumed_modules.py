"""Trainings by Lightning that go on from a checkpoint. Apart from the tests, as Lightning takes
seconds to import: not where tests are only collected.
"""

import lightning.pytorch as lightning
import torch
from tests.sdk.integrations.lightning_modules import BATCH, ROWS, HomeStrategy, Net, loader
from tests.sdk.integrations.lightning_modules import check_weights as check_weights

N_BATCHES = ROWS // BATCH
CHECKPOINT = "step=4.ckpt"
MIDDLE = "middle.ckpt"


class Plain(Net):
    """Its optimizer has moments."""

    n_steps = 0

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def test_step(self, batch, batch_idx):
        self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.02)

    def on_fit_end(self):
        self.n_steps = self.trainer.global_step


class Reloaded(Plain):
    """Begins one of its weights anew when it is loaded."""

    def on_load_checkpoint(self, checkpoint):
        checkpoint["state_dict"]["head.weight"].zero_()


class Begun(Plain):
    """Changes its weights before each training."""

    def on_fit_start(self):
        with torch.no_grad():
            self.head.weight.mul_(0.5)


class Counted(Plain):
    """Counts its batches in a buffer that no step reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.seen += 1


class Broken(Plain):
    """Breaks its training off."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        1 / (3 - batch_idx)


class InTheMiddle(lightning.Callback):
    """Saves after the third batch."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 2 and trainer.current_epoch == 0:
            trainer.save_checkpoint(self.folder / MIDDLE)


def trainer_of(folder, *, home=None, choose=None, weights_only=False, epochs=2, **given):
    by_steps = lightning.callbacks.ModelCheckpoint(
        folder,
        filename="{step}",
        every_n_train_steps=4,
        save_top_k=-1,
        save_weights_only=weights_only,
    )
    where = {"devices": 1} if home is None else {"strategy": HomeStrategy(home, choose=choose)}
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[by_steps, InTheMiddle(folder)],
        **where,
        **given,
    )


def fitted(net, folder, *, checkpoint=None, **given):
    trainer_of(folder, **given).fit(net, loader(), ckpt_path=checkpoint)


def gone_on(kind, folder, *, at=CHECKPOINT, **given):
    """The module that went on from a checkpoint of another one."""
    fitted(kind(), folder, **given)
    net = kind()
    fitted(net, folder, checkpoint=folder / at, **given)
    return net


def tested_between(folder, **given):
    """The module that was trained after a checkpoint of its first training was tested."""
    trainer, net = trainer_of(folder, **given), Plain()
    trainer.fit(net, loader())
    trainer.test(net, loader(), ckpt_path=folder / CHECKPOINT, verbose=False)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(net, loader())
    return net
