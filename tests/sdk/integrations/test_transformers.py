"""`HomeTrainer` against transformers' own Trainer: the same losses, rates, norms and weights."""

import copy

import pytest

import potluck
from potluck.errors import Infeasible, UserError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from potluck.integrations.transformers import HomeTrainer  # noqa: E402 - needs what is asked for

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

    def forward(self, input_ids, labels=None):
        logits = self.head(torch.tanh(self.q_proj(self.words(input_ids))).mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


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
        for step, told in mine.items():
            assert told == pytest.approx(its[step], rel=1e-4)


def logged(trainer, what):
    """By step: the loss, and what is logged beside it."""
    return {
        entry["step"]: [entry.get(key, 0.0) for key in (what, "grad_norm", "learning_rate")]
        for entry in trainer.state.log_history
        if what in entry
    }


def test_a_trainer_with_a_home_logs_and_learns_what_it_does_without(pair, on_both, tmp_path):
    theirs = trained(transformers.Trainer, tmp_path / "theirs")
    ours = trained(HomeTrainer, tmp_path / "ours", home=pair, choose=on_both)
    check_alike(ours, theirs)
    assert len(ours.home_run.plan.devices) == 2
    assert ours.home_run.step == 6
    # from the middle, moments and all
    again = trained(
        HomeTrainer,
        tmp_path / "ours",
        home=pair,
        choose=on_both,
        resume=str(tmp_path / "ours" / "checkpoint-3"),
    )
    check_alike(again, theirs)


@pytest.mark.long
def test_of_a_causal_model_words_count_alike_whatever_batches_they_are_in(pair, on_both, tmp_path):
    theirs = trained(transformers.Trainer, tmp_path / "a", model=make_llama(), by_word=True)
    ours = trained(
        HomeTrainer, tmp_path / "b", model=make_llama(), by_word=True, home=pair, choose=on_both
    )
    check_alike(ours, theirs)


@pytest.mark.long
def test_of_adapters_by_peft_only_these_are_trained(pair, on_both, tmp_path):
    peft = pytest.importorskip("peft")
    few = {"num_train_epochs": 1, "gradient_accumulation_steps": 1, "save_strategy": "no"}

    def adapted():
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0)
        torch.manual_seed(2)
        return peft.get_peft_model(make_net(), config)

    before = copy.deepcopy(adapted().state_dict())
    theirs = trained(transformers.Trainer, tmp_path / "a", model=adapted(), others=few)
    ours = trained(
        HomeTrainer, tmp_path / "b", model=adapted(), others=few, home=pair, choose=on_both
    )
    weights = theirs.model.state_dict()
    for name, weight in ours.model.state_dict().items():
        assert torch.allclose(weight, weights[name], atol=CLOSE), name
        assert ("lora" in name) == (not torch.equal(weight, before[name])), name
    ours.model.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 10_000


@pytest.mark.parametrize(
    ("others", "name"),
    [({"label_smoothing_factor": 0.1}, "label_smoothing_factor"), ({"bf16": True}, "bf16")],
)
def test_what_the_trainer_is_to_compute_itself_is_refused_by_name(pair, tmp_path, others, name):
    with pytest.raises(UserError, match=name):
        HomeTrainer(make_net(), arguments(tmp_path, eval_strategy="no", **others), home=pair)


def test_a_loss_of_ones_own_is_refused(pair, tmp_path):
    class Own(HomeTrainer):
        def compute_loss(self, *args, **kwargs):
            raise AssertionError("never called")

    with pytest.raises(UserError, match="compute_loss"):
        Own(make_net(), arguments(tmp_path, eval_strategy="no"), home=pair)


def test_limits_that_no_plan_holds_are_said_before_anything_is_trained(pair, tmp_path):
    with pytest.raises(Infeasible):
        trained(HomeTrainer, tmp_path, home=pair, qoe=potluck.QoE(latency_s=1e-9))
