"""Trainings by transformers, and their data. Apart from the tests, as its Trainer takes seconds to
import: not where tests are only collected.
"""

import pytest
import torch
import transformers

from potluck.integrations.transformers import HomeTrainer as HomeTrainer

ROWS, LENGTH = 24, 8
WORDS = 40
CLOSE = 2e-5  # AdamW divides small gradients by their own size


class Tagger(torch.nn.Module):
    """A class for each sentence, and its loss."""

    def __init__(self):
        super().__init__()
        self.config = transformers.PretrainedConfig()
        self.words = torch.nn.Embedding(WORDS, 16)
        self.q_proj = torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, WORDS)
        self.scale = 1.0

    def forward(self, input_ids, labels=None):
        logits = self.scale * self.head(torch.tanh(self.q_proj(self.words(input_ids))).mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class TaggerOfAny(Tagger):
    """Takes what else the Trainer gives it, such as a number of items, and does nothing with it."""

    def forward(self, input_ids, labels=None, **others):
        return super().forward(input_ids, labels)


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-3, momentum=0.5),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, 1e-2),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, 1e-2),
}


def make_net():
    torch.manual_seed(0)
    return Tagger()


def make_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=WORDS,
        max_position_embeddings=16,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def make_data(*, by_word=False):
    """Sentences with a label; or words of which some do not count."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, WORDS, (ROWS, LENGTH), generator=draw)
    labels = torch.where(torch.rand(ROWS, LENGTH, generator=draw) < 0.3, -100, ids)
    labels = labels if by_word else ids[:, 0]
    return [{"input_ids": i, "labels": j} for i, j in zip(ids, labels, strict=True)]


def arguments(folder, **others):
    settings = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_steps": 3,
        "eval_strategy": "epoch",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(str(folder), **(settings | others))


def trained(kind, folder, *, resume=None, others=None, by_word=False, **given):
    """The trainer afterwards."""
    data = make_data(by_word=by_word)
    trainer = kind(
        given.pop("model", None) or make_net(),
        arguments(folder, **(others or {})),
        train_dataset=data,
        eval_dataset=data[:6],
        **given,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def check_alike(ours, theirs):
    weights = theirs.model.state_dict()
    for name, weight in ours.model.state_dict().items():
        assert torch.allclose(weight, weights[name], atol=CLOSE), name
    for what in ("loss", "eval_loss"):
        mine, its = logged(ours, what), logged(theirs, what)
        assert set(mine) <= set(its)
        assert len(mine) == len(its) or "eval" in what  # a checkpoint is older than its evaluation
        for step, metrics in mine.items():
            assert metrics == pytest.approx(its[step], rel=1e-4)


def logged(trainer, what):
    """By step: the loss, and what is logged beside it."""
    return {
        entry["step"]: [entry.get(key, 0.0) for key in (what, "grad_norm", "learning_rate")]
        for entry in trainer.state.log_history
        if what in entry
    }


class Averaged(transformers.TrainerCallback):
    """Looks at the weights after every step."""

    def on_train_begin(self, args, state, control, *, model, **kwargs):
        self.mean = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def on_step_end(self, args, state, control, *, model, **kwargs):
        for mean, parameter in zip(self.mean, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.5)


class Clamped(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, *, model, **kwargs):
        for parameter in model.parameters():
            parameter.data.clamp_(-0.05, 0.05)


class Halved(transformers.TrainerCallback):
    def on_epoch_end(self, args, state, control, *, model, **kwargs):
        for parameter in model.parameters():
            parameter.data.mul_(0.5)


class Thawed(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, *, model, **kwargs):
        model.words.requires_grad_(state.global_step > 0)


class Attribute(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, *, model, **kwargs):
        model.scale = 1.0 + state.global_step


class Forgotten(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, *, optimizer, **kwargs):
        if state.global_step == 2:
            optimizer.state.clear()


class Reloaded(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, *, optimizer, **kwargs):
        optimizer.load_state_dict(optimizer.state_dict())


class Moments(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, *, optimizer, model, **kwargs):
        assert optimizer.state[model.head.weight]["exp_avg"].norm() > 0


class Gradients(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
        for parameter in model.parameters():
            parameter.grad.mul_(0.1)


def masking(kind):
    """The same, which makes another batch of each."""

    class Masking(kind):
        def _prepare_inputs(self, inputs):
            inputs = super()._prepare_inputs(inputs)
            return inputs | {"input_ids": inputs["input_ids"] * (inputs["input_ids"] > 9)}

    return Masking
