"""Modules and callbacks of Lightning that change something around a step, or look at it."""

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging
from tests.sdk.integrations.lightning_modules import BATCH, Net

functional = torch.nn.functional


class Plain(Net):
    validation_step = None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.2, momentum=0.9)


class OddOrder(Plain):
    """Mappings whose parts come in another order with every batch; parts are alike."""

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.head(self.body(batch["x"])), batch["z"][:, :4])


class WithoutIndex(Plain):
    def training_step(self, batch):
        return self.loss(batch)


class Epoch(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.current_epoch)


class Step(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * min(1.0, self.global_step / 4)


class Trainers(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.trainer.current_epoch)


class Index(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + batch_idx)


class Skipped(Plain):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else self.loss(batch)


class Attribute(Plain):
    scale = 1.0

    def on_train_epoch_start(self):
        self.scale = 1.0 + self.current_epoch

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.scale


class OfClass(Attribute):
    def on_train_epoch_start(self):
        type(self).scale = 1.0 + self.current_epoch


class Tensor(Attribute):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(1.0)

    def on_train_epoch_start(self):
        self.scale.fill_(1.0 + self.current_epoch)


FACTOR = [1.0]


class Outside(Plain):
    """Reads a number that is none of its own."""

    def on_train_epoch_start(self):
        FACTOR[0] = 1.0 + self.current_epoch

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * FACTOR[0]


class Buffer(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.0), persistent=False)

    def on_train_epoch_start(self):
        self.scale.fill_(1.0 + self.current_epoch)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.scale


class Part(Plain):
    def __init__(self):
        super().__init__()
        self.body.append(torch.nn.Dropout(0.0))

    def on_train_epoch_start(self):
        self.body[-1].p = 0.5 * (self.current_epoch > 0)


class Mode(Plain):
    def on_train_epoch_start(self):
        self.body.train(self.current_epoch == 0)


class Frozen(Plain):
    def on_train_epoch_start(self):
        self.body.requires_grad_(self.current_epoch > 0)


class Notes(Plain):
    """What it keeps is nothing to its steps."""

    def __init__(self):
        super().__init__()
        self.notes, self.sum = [], torch.zeros(())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_epoch=True, batch_size=BATCH)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.notes.append(batch_idx)
        self.sum += outputs["loss"]


class Gradients(Plain):
    def on_after_backward(self):
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.1)


class Clipping(Plain):
    def configure_gradient_clipping(self, optimizer, *args, **kwargs):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class EverySecond(Plain):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        if batch_idx % 2:
            optimizer.step()


class WarmUp(Plain):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)
        optimizer.param_groups[0]["lr"] = 0.2 * min(1.0, (self.trainer.global_step + 1) / 5)


class TwoSteps(Plain):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)
        optimizer.step()


class RateByLoss(Plain):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.param_groups[0]["lr"] = 0.1 * float(optimizer_closure())
        optimizer.step()


class RateBeforeBackward(Plain):
    def on_before_backward(self, loss):
        self.optimizers().param_groups[0]["lr"] = 0.1 * float(loss)


class KeepsGradients(Plain):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 2:
            optimizer.zero_grad()


class ZerosGradients(Plain):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


class Looking(Plain):
    """Averages the weights at one moment of a step, and has the average at the end."""

    def on_train_start(self):
        self.mean = [torch.zeros_like(parameter) for parameter in self.parameters()]

    def look(self):
        for mean, parameter in zip(self.mean, self.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.5)

    def on_fit_end(self):
        for mean, parameter in zip(self.mean, self.parameters(), strict=True):
            parameter.data.copy_(mean)


class BeforeZeroGrad(Looking):
    def on_before_zero_grad(self, optimizer):
        self.look()


class BeforeBackward(Looking):
    def on_before_backward(self, loss):
        self.look()


class BetweenClosureAndStep(Looking):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer_closure()
        self.look()
        optimizer.step()


class Turned(Plain):
    """Rows of a weight change places: the same numbers."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.head.weight.data.copy_(self.head.weight.flip(0))


class Clamped(Plain):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        for parameter in self.parameters():
            parameter.data.clamp_(-0.1, 0.1)


class GradientCallback(lightning.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        Gradients.on_after_backward(module)


class Halved(lightning.Callback):
    def on_train_epoch_end(self, trainer, module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(0.5)


class Averaged(lightning.Callback):
    """Looks at the weights after every step, and has a say at the end."""

    def on_train_start(self, trainer, module):
        self.mean = [torch.zeros_like(parameter) for parameter in module.parameters()]

    def on_train_batch_end(self, trainer, module, *args):
        for mean, parameter in zip(self.mean, module.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.5)

    def on_fit_end(self, trainer, module):
        for mean, parameter in zip(self.mean, module.parameters(), strict=True):
            parameter.data.copy_(mean)


def swa():
    return StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=1)


# by name: module, callback, and what it is refused with
AROUND_A_STEP = {
    "another order": (OddOrder, None, None),
    "no batch_idx": (WithoutIndex, None, None),
    "notes": (Notes, None, None),
    "a warm-up of its own": (WarmUp, None, None),
    "looks": (Plain, Averaged, None),
    "averages": (Plain, lambda: EMAWeightAveraging(decay=0.5), None),
    "averages of epochs": (Plain, swa, None),
    "epoch": (Epoch, None, "reads current_epoch"),
    "step": (Step, None, "reads global_step"),
    "trainer": (Trainers, None, "reads trainer"),
    "batch_idx": (Index, None, "uses batch_idx"),
    "a step left out by batch_idx": (Skipped, None, "uses batch_idx"),
    "attribute": (Attribute, None, r"scale .* now"),
    "attribute of the class": (OfClass, None, "scale is another one now"),
    "tensor": (Tensor, None, "scale .* was changed"),
    "outside": (Outside, None, "FACTOR .read by Outside.training_step. is another one now"),
    "buffer": (Buffer, None, "scale was changed"),
    "attribute of a part": (Part, None, r"body\.2\.p is 0\.5 now"),
    "mode": (Mode, None, "body is in evaluation now"),
    "freezes": (Frozen, None, "is trained now"),
    "gradients": (Gradients, None, "Gradients.on_after_backward looks at gradients"),
    "clipping": (Clipping, None, "configure_gradient_clipping looks at gradients"),
    "gradients in a callback": (Plain, GradientCallback, "on_before_optimizer_step looks at"),
    "looks before gradients are zero": (BeforeZeroGrad, None, None),
    "looks before the backward": (BeforeBackward, None, None),
    "looks before the step": (BetweenClosureAndStep, None, None),
    "gradients are zeroed": (ZerosGradients, None, None),
    "gradients are kept": (KeepsGradients, None, "optimizer_zero_grad of the module keeps"),
    "two steps": (TwoSteps, None, "takes more steps than one"),
    "a rate by the loss": (RateByLoss, None, "changed between the closure and its step"),
    "a rate before the backward": (RateBeforeBackward, None, "changed between the closure"),
    "weights in another order": (Turned, None, "weight was changed in the module here"),
    "a step left out": (EverySecond, None, "has left out a step"),
    "weights": (Clamped, None, "weight was changed in the module here"),
    "weights after an epoch": (Plain, Halved, "weight was changed in the module here"),
}


def loader():
    torch.manual_seed(1)
    rows = zip(torch.randn(40, 8), torch.randn(40, 8), torch.randint(0, 4, (40,)), strict=True)
    n_made = 0

    def collate(items):
        nonlocal n_made
        n_made += 1
        parts = zip("xzy", map(torch.stack, zip(*items, strict=True)), strict=True)
        return dict([*parts][:: 1 if n_made % 2 else -1])

    return torch.utils.data.DataLoader([*rows], batch_size=BATCH, collate_fn=collate)


def trained(name, **given):
    """The module after three epochs."""
    kind, callback, _ = AROUND_A_STEP[name]
    Attribute.scale = OfClass.scale = 1.0
    FACTOR[0] = 1.0
    net = kind()
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[callback()] if callback else None,
        **given,
    ).fit(net, loader())
    return net
