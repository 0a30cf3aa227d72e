"""A training by `HomeStrategy` that goes on from a checkpoint is Lightning's own, or is refused."""

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]


@pytest.fixture(scope="module")
def made():
    """Trainings that go on."""
    pytest.importorskip("lightning.pytorch")
    from tests.sdk.integrations import resumed_modules

    return resumed_modules


@pytest.mark.parametrize("name", ["Plain", "Reloaded", "Begun", "Counted"])
def test_a_training_goes_on_as_lightnings_does(made, pair, on_both, tmp_path, name):
    kind = getattr(made, name)
    theirs = made.gone_on(kind, tmp_path / "a")
    ours = made.gone_on(kind, tmp_path / "b", home=pair, choose=on_both)
    made.check_weights(ours, theirs)


def test_a_checkpoint_in_the_middle_of_a_step_begins_the_step_with_what_is_left(
    made, pair, on_both, tmp_path
):
    ours = made.gone_on(
        made.Plain, tmp_path, at=made.MIDDLE, home=pair, choose=on_both, accumulate_grad_batches=2
    )
    assert ours.n_steps == made.N_BATCHES


def test_a_link_to_a_checkpoint_is_that_checkpoint(made, pair, on_both, tmp_path):
    made.fitted(made.Plain(), tmp_path, home=pair, choose=on_both)
    (tmp_path / "last.ckpt").symlink_to(tmp_path / made.CHECKPOINT)
    ours, linked = made.Plain(), made.Plain()
    for net, name in ((ours, made.CHECKPOINT), (linked, "last.ckpt")):
        made.fitted(net, tmp_path, home=pair, choose=on_both, checkpoint=tmp_path / name)
    made.check_weights(linked, ours)


def test_a_checkpoint_that_was_tested_begins_no_training(made, pair, on_both, tmp_path):
    theirs = made.tested_between(tmp_path / "a")
    ours = made.tested_between(tmp_path / "b", home=pair, choose=on_both)
    made.check_weights(ours, theirs)


@pytest.mark.parametrize("is_begun_at_home", [True, False])
def test_a_checkpoint_is_lightnings_own_with_or_without_a_home(
    made, pair, on_both, tmp_path, is_begun_at_home
):
    theirs, ours = made.gone_on(made.Plain, tmp_path / "a"), made.Plain()
    ways = [{"home": pair, "choose": on_both}, {}]
    first, second = ways if is_begun_at_home else ways[::-1]
    made.fitted(made.Plain(), tmp_path / "b", **first)
    made.fitted(ours, tmp_path / "b", checkpoint=tmp_path / "b" / made.CHECKPOINT, **second)
    made.check_weights(ours, theirs)


def test_moments_are_the_checkpoints_where_nothing_lies_beside(made, pair, on_both, tmp_path):
    theirs, ours = made.gone_on(made.Plain, tmp_path / "a"), made.Plain()
    made.fitted(made.Plain(), tmp_path, home=pair, choose=on_both)
    (tmp_path / f"{made.CHECKPOINT}.potluck").unlink()
    made.fitted(ours, tmp_path, home=pair, choose=on_both, checkpoint=tmp_path / made.CHECKPOINT)
    made.check_weights(ours, theirs)


def test_a_run_ends_with_its_training_whose_state_is_saved_and_asked_afterwards(
    made, pair, on_both, tmp_path
):
    theirs, ours = made.Plain(), made.Plain()
    on = made.Plain()
    made.fitted(theirs, tmp_path / "a", epochs=3)
    trainer = made.trainer_of(tmp_path / "b", home=pair, choose=on_both)
    trainer.fit(ours, made.loader())
    assert trainer.strategy.home_run not in pair.runs
    trainer.validate(ours, made.loader(), verbose=False)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    made.fitted(on, tmp_path / "c", checkpoint=tmp_path / "end.ckpt", epochs=3)
    made.check_weights(on, theirs)


def test_a_training_that_is_broken_off_ends_its_run(made, pair, on_both, tmp_path):
    trainer = made.trainer_of(tmp_path, home=pair, choose=on_both)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(made.Broken(), made.loader())
    assert trainer.strategy.home_run not in pair.runs


def test_of_weights_alone_devices_save_nothing(made, pair, on_both, tmp_path):
    made.fitted(made.Plain(), tmp_path, home=pair, choose=on_both, weights_only=True)
    assert (tmp_path / made.CHECKPOINT).exists()
    assert not (tmp_path / f"{made.CHECKPOINT}.potluck").exists()


def test_a_compiled_module_is_trained_as_it_was_written(made, pair, on_both, tmp_path):
    theirs, ours = made.Plain(), made.Plain()
    made.fitted(theirs, tmp_path / "a")
    compiled = torch.compile(ours, backend="eager")
    made.fitted(compiled, tmp_path / "b", home=pair, choose=on_both)
    made.check_weights(ours, theirs)
