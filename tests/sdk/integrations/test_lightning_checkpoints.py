"""A training by `HomeStrategy` that goes on from a checkpoint is Lightning's own, or is refused."""

import pytest

from potluck.errors import UserError

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


def test_moments_that_are_not_there_are_missed_by_name(made, pair, on_both, tmp_path):
    made.fitted(made.Plain(), tmp_path, home=pair, choose=on_both)
    (tmp_path / f"{made.CHECKPOINT}.potluck").unlink()
    with pytest.raises(UserError, match="the file in which they saved it is not there"):
        made.fitted(
            made.Plain(), tmp_path, home=pair, choose=on_both, checkpoint=tmp_path / made.CHECKPOINT
        )


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
