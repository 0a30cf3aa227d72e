"""`HomeTrainer` against transformers' own Trainer: the same losses, rates, norms and weights."""

import copy

import pytest

import potluck
from potluck.errors import Infeasible, PotluckError, UserError

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def its():
    """Trainings."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from tests.sdk.integrations import transformers_trainings

    return transformers_trainings


@pytest.mark.long
def test_a_trainer_with_a_home_logs_and_learns_what_it_does_without(its, pair, on_both, tmp_path):
    theirs = its.trained(its.transformers.Trainer, tmp_path / "theirs")
    ours = its.trained(its.HomeTrainer, tmp_path / "ours", home=pair, choose=on_both)
    its.check_alike(ours, theirs)
    assert len(ours.home_run.plan.devices) == 2
    assert ours.home_run.step == 6
    assert ours.home_run.history.losses
    assert ours.home_run not in pair.runs
    # from the middle, moments and all
    again = its.trained(
        its.HomeTrainer,
        tmp_path / "ours",
        home=pair,
        choose=on_both,
        resume=str(tmp_path / "ours" / "checkpoint-3"),
    )
    its.check_alike(again, theirs)


def test_a_norm_that_no_device_took_is_not_logged(its, pair, tmp_path):
    few = {"max_grad_norm": 0.0, "num_train_epochs": 1, "save_strategy": "no"}
    ours = its.trained(its.HomeTrainer, tmp_path, others=few, home=pair)
    logged = [entry for entry in ours.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert not any("grad_norm" in entry for entry in logged)


@pytest.mark.long
def test_of_a_causal_model_words_count_alike_whatever_batches_they_are_in(
    its, pair, on_both, tmp_path
):
    theirs = its.trained(
        its.transformers.Trainer, tmp_path / "a", model=its.make_llama(), by_word=True
    )
    ours = its.trained(
        its.HomeTrainer,
        tmp_path / "b",
        model=its.make_llama(),
        by_word=True,
        home=pair,
        choose=on_both,
    )
    its.check_alike(ours, theirs)


def test_losses_that_the_trainer_would_add_up_are_refused(its, pair, tmp_path):
    with pytest.raises(UserError, match=r"adds their losses up, as TaggerOfAny.*accepts_loss_k"):
        its.trained(its.HomeTrainer, tmp_path, model=its.TaggerOfAny(), home=pair)


@pytest.mark.long
def test_losses_that_it_is_told_to_divide_are_divided(its, pair, on_both, tmp_path):
    def made():
        torch.manual_seed(0)
        net = its.TaggerOfAny()
        net.accepts_loss_kwargs = False
        return net

    theirs = its.trained(its.transformers.Trainer, tmp_path / "a", model=made())
    ours = its.trained(its.HomeTrainer, tmp_path / "b", model=made(), home=pair, choose=on_both)
    its.check_alike(ours, theirs)


@pytest.mark.long
def test_of_adapters_by_peft_only_these_are_trained(its, pair, on_both, tmp_path):
    peft = pytest.importorskip("peft")
    few = {"num_train_epochs": 1, "gradient_accumulation_steps": 1, "save_strategy": "no"}

    def adapted():
        config = peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.0)
        torch.manual_seed(2)
        return peft.get_peft_model(its.make_net(), config)

    before = copy.deepcopy(adapted().state_dict())
    theirs = its.trained(its.transformers.Trainer, tmp_path / "a", model=adapted(), others=few)
    ours = its.trained(
        its.HomeTrainer, tmp_path / "b", model=adapted(), others=few, home=pair, choose=on_both
    )
    weights = theirs.model.state_dict()
    for name, weight in ours.model.state_dict().items():
        assert torch.allclose(weight, weights[name], atol=its.CLOSE), name
        assert ("lora" in name) == (not torch.equal(weight, before[name])), name
    ours.model.save_pretrained(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 10_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("others", "name"),
    [({"label_smoothing_factor": 0.1}, "label_smoothing_factor"), ({"bf16": True}, "bf16")],
)
def test_what_the_trainer_is_to_compute_itself_is_refused_by_name(
    its, pair, tmp_path, others, name
):
    with pytest.raises(UserError, match=name):
        its.HomeTrainer(
            its.make_net(), its.arguments(tmp_path, eval_strategy="no", **others), home=pair
        )


def test_a_loss_of_ones_own_is_refused(its, pair, tmp_path):
    class Own(its.HomeTrainer):
        def compute_loss(self, *args, **kwargs):
            raise AssertionError("never called")

    with pytest.raises(UserError, match="compute_loss"):
        Own(its.make_net(), its.arguments(tmp_path, eval_strategy="no"), home=pair)


@pytest.mark.long
def test_limits_that_no_plan_holds_are_said_before_anything_is_trained(its, pair, tmp_path):
    with pytest.raises(Infeasible):
        its.trained(its.HomeTrainer, tmp_path, home=pair, qoe=potluck.QoE(latency_s=1e-9))


@pytest.mark.long
def test_a_callback_sees_the_weights_of_its_step(its, pair, on_both, tmp_path):
    alone, here = its.Averaged(), its.Averaged()
    its.trained(its.transformers.Trainer, tmp_path / "a", callbacks=[alone])
    its.trained(its.HomeTrainer, tmp_path / "b", callbacks=[here], home=pair, choose=on_both)
    for ours, theirs in zip(here.mean, alone.mean, strict=True):
        assert torch.allclose(ours, theirs, atol=its.CLOSE)


def test_what_a_trainer_of_ones_own_makes_of_a_batch_is_trained_on(its, pair, on_both, tmp_path):
    alone = its.trained(its.masking(its.transformers.Trainer), tmp_path / "a")
    here = its.trained(its.masking(its.HomeTrainer), tmp_path / "b", home=pair, choose=on_both)
    its.check_alike(here, alone)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Attribute", r"scale is 2\.0 now"),
        ("Clamped", "weight was changed in the module here"),
        ("Halved", "weight was changed in the module here"),
        ("Thawed", "is trained now"),
        ("Forgotten", "state of the optimizer was looked at or changed"),
        ("Reloaded", "state of the optimizer was looked at or changed"),
        ("Moments", "state of the optimizer was looked at or changed"),
        ("Gradients", "Gradients.on_pre_optimizer_step looks at gradients"),
    ],
)
def test_what_a_callback_changes_in_the_model_is_refused_by_name(its, pair, tmp_path, name, says):
    with pytest.raises(PotluckError, match=f"(?s){says}"):
        its.trained(its.HomeTrainer, tmp_path, callbacks=[getattr(its, name)()], home=pair)


@pytest.mark.long
def test_a_second_training_goes_on_with_the_moments_of_the_first(its, pair, on_both, tmp_path):
    theirs = its.trained(its.transformers.Trainer, tmp_path / "a")
    ours = its.trained(its.HomeTrainer, tmp_path / "b", home=pair, choose=on_both)
    for trainer in (theirs, ours):
        trainer.train()
    its.check_alike(ours, theirs)


@pytest.mark.few(2)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "rmsprop", "adagrad", "nadam"])
@pytest.mark.parametrize("begun_by", ["HomeTrainer", "Trainer"])
def test_a_checkpoint_is_the_trainers_own_with_or_without_a_home(
    its, pair, on_both, tmp_path, begun_by, optimizer
):
    def trained(kind, folder, resume=None):
        at_home = {"home": pair, "choose": on_both} if kind is its.HomeTrainer else {}
        net = its.make_net()
        own = its.OPTIMIZERS[optimizer](net.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(own, lambda step: 1 / (1 + step))
        given = {"model": net, "optimizers": (own, schedule), "resume": resume}
        return its.trained(kind, folder, **given, **at_home)

    kinds = [its.HomeTrainer, its.transformers.Trainer]
    first, second = kinds if begun_by == "HomeTrainer" else kinds[::-1]
    theirs = trained(its.transformers.Trainer, tmp_path / "theirs")
    trained(first, tmp_path / "both")
    on = trained(second, tmp_path / "both", tmp_path / "both" / "checkpoint-3")
    its.check_alike(on, theirs)


@pytest.mark.long
def test_moments_of_a_checkpoint_are_its_own_whatever_lies_beside(its, pair, on_both, tmp_path):
    at_home = {"home": pair, "choose": on_both}
    theirs = its.trained(its.HomeTrainer, tmp_path / "a", **at_home)
    its.trained(its.HomeTrainer, tmp_path / "b", **at_home)
    beside = [tmp_path / "b" / f"checkpoint-{n}" / "potluck-run.safetensors" for n in (3, 6)]
    beside[0].write_bytes(beside[1].read_bytes())
    for _ in range(2):
        again = its.trained(
            its.HomeTrainer, tmp_path / "b", resume=tmp_path / "b" / "checkpoint-3", **at_home
        )
        its.check_alike(again, theirs)
        beside[0].unlink(missing_ok=True)


@pytest.mark.long
def test_of_a_model_alone_devices_save_nothing(its, pair, on_both, tmp_path):
    others = {"save_only_model": True}
    its.trained(its.HomeTrainer, tmp_path, home=pair, choose=on_both, others=others)
    assert not [*tmp_path.rglob("potluck-run.safetensors")]
