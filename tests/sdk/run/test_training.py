"""Training over real agents equals training on one machine, whatever the plan, the switch or the
interruption.
"""

import copy
import threading

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_net, make_plan, train_alone
from tests.timeouts import TIMEOUT_S

import potluck

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"
SHAPES = {
    "one device": ([((A,), (4,))], 0.0),
    "two stages": ([((A,), (4,)), ((B,), (4,))], 0.0),
    "replicated": ([((A, B), (3, 1))], 1e-6),
    "replicated, then one": ([((A, B), (2, 2)), ((B,), (4,))], 1e-6),
}
OPTIMIZERS = {
    "adamw": (potluck.AdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    "momentum": (potluck.SGD(0.05, momentum=0.9), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)),
    "sgd": (potluck.SGD(0.05), lambda p: torch.optim.SGD(p, 0.05)),
}


def largest_difference(state, net):
    return max(
        (state[name] - tensor).abs().max().item() for name, tensor in net.state_dict().items()
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_one_machine(home, shape):
    kind, (stages, tolerance) = "cnn", SHAPES[shape]
    net, model = make_model(kind)
    x, y = make_data(kind, 24)
    run = home.deploy(make_plan(model, *stages, micro_batch=4, n_micro_batches=3), model).wait()
    history = run.fit((x, y), epochs=3).wait()
    alone = copy.deepcopy(net)
    losses = train_alone(
        alone,
        x,
        y,
        batch=12,
        micro_batch=4,
        epochs=3,
        make_optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    )
    assert history.rows == (12,) * 6
    assert history.losses == pytest.approx(losses, rel=1e-6, abs=tolerance)
    assert largest_difference(run.state_dict(), alone) <= 10 * tolerance
    assert run.step == 6
    run.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_torchs(home, name):
    ours, torchs = OPTIMIZERS[name]
    net, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=ours).wait()
    run.fit((x, y), epochs=3).wait()
    alone = copy.deepcopy(net)
    train_alone(alone, x, y, batch=8, micro_batch=4, epochs=3, make_optimizer=torchs)
    assert largest_difference(run.state_dict(), alone) == 0.0
    run.close()


def test_a_weighted_mean_is_that_of_the_whole_batch(home):
    """Class weights and ignored targets, in micro-batches and unequal shares, one of which counts
    nothing.
    """
    net, loss = make_net("mlp"), torch.nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.2, 2.0]))
    x, y = make_data("mlp", 14)
    y[torch.tensor([0, 1, 2, 6, 9, 13])] = -100
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    plan = make_plan(model, ((A,), (4,)), ((A, B), (3, 1)), micro_batch=4, n_micro_batches=2)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
    losses = run.fit([(x[:8], y[:8]), (x[8:], y[8:])]).wait().losses
    alone, expected = copy.deepcopy(net), []
    for part in (slice(0, 8), slice(8, 14)):
        expected.append(loss(alone(x[part]), y[part]))
        for p, g in zip(
            alone.parameters(),
            torch.autograd.grad(expected[-1], tuple(alone.parameters())),
            strict=True,
        ):
            p.data -= 0.1 * g
    assert losses == pytest.approx([loss.item() for loss in expected], abs=1e-6)
    assert largest_difference(run.state_dict(), alone) <= 1e-6
    run.close()


def test_a_smaller_last_batch_counts_by_its_rows(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 22)
    run = home.deploy(
        make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2), model
    ).wait()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    history = run.fit(loader, epochs=2).wait()
    alone = copy.deepcopy(net)
    losses = train_alone(
        alone,
        x,
        y,
        batch=8,
        micro_batch=4,
        epochs=2,
        make_optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    )
    assert history.rows == (8, 8, 6) * 2
    assert history.losses == pytest.approx(losses, abs=1e-6)
    assert largest_difference(run.state_dict(), alone) <= 1e-6
    run.close()


def test_a_batch_larger_than_the_plans_is_one_step_with_a_note(home):
    _, model = make_model("mlp")
    run = home.deploy(
        make_plan(model, ((A, B), (2, 2)), micro_batch=4, n_micro_batches=2), model
    ).wait()
    assert run.fit(make_data("mlp", 9)).wait().rows == (8, 1)
    assert not run.history.notes
    larger = run.fit([make_data("mlp", 16)] * 2).wait()
    assert larger.rows == (16, 16)
    assert repr(larger).count("batches of 16 rows") == 1  # told once, to one who planned for 8
    run.close()


def test_a_plan_that_does_not_fit_leaves_the_old_one_standing(home):
    _, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    run.fit((x, y)).wait()
    from dataclasses import replace

    too_big = replace(make_plan(model, ((B,), (4,)), micro_batch=4), peak_bytes={B: 2**60})
    before = run.state_dict()
    with pytest.raises(
        potluck.errors.OutOfMemory, match=r"local-2.*needs .*MiB.*available"
    ) as caught:
        run.switch(too_big).wait()
    assert caught.value.facts["needed_bytes"] == 2**60
    assert run.plan.devices == (A,)
    after = run.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    run.fit((x, y)).wait()
    assert run.step == 8
    run.close()


def test_a_saved_run_goes_on_as_if_uninterrupted(home, tmp_path):
    _, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    uninterrupted = home.deploy(plan, model, seed=7).wait()
    uninterrupted.fit((x, y), epochs=4).wait()
    half = home.deploy(plan, model, seed=7).wait()
    half.fit((x, y), epochs=2).wait()
    half.save(tmp_path / "half.safetensors")
    half.close()
    rest = home.deploy(plan, model, resume=tmp_path / "half.safetensors").wait()
    assert rest.step == 4
    rest.fit((x, y), epochs=2).wait()
    expected, got = uninterrupted.state_dict(), rest.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert uninterrupted.history.losses[4:] == rest.history.losses
    assert [path.name for path in tmp_path.iterdir()] == ["half.safetensors"]
    uninterrupted.close()
    rest.close()


def test_another_models_file_and_a_cut_file_are_refused(home, tmp_path):
    _, mlp = make_model("mlp")
    _, cnn = make_model("cnn")
    run = home.deploy(make_plan(mlp, ((A,), (4,)), micro_batch=4), mlp).wait()
    path = tmp_path / "run.safetensors"
    run.save(path)
    run.close()
    with pytest.raises(potluck.errors.FileError, match="another model"):
        home.deploy(make_plan(cnn, ((A,), (4,)), micro_batch=4), cnn, resume=path).wait()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(potluck.errors.FileError, match="cannot read"):
        home.deploy(make_plan(mlp, ((A,), (4,)), micro_batch=4), mlp, resume=path).wait()


def test_the_trained_weights_come_back_into_the_module(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    run.fit((x, y)).wait()
    trained = run.state_dict()
    with torch.no_grad():
        out = run(x)
    run.load_into()
    assert largest_difference(trained, net) == 0.0
    with torch.no_grad():
        assert (out - net(x)).abs().max().item() <= 1e-6
    assert run.evaluate((x, y), torch.nn.functional.cross_entropy) == pytest.approx(
        torch.nn.functional.cross_entropy(net(x), y).item(), abs=1e-6
    )
    run.close()


@pytest.mark.long
def test_a_module_gets_its_weights_after_the_fits_that_were_begun(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    alone = copy.deepcopy(net)
    run.fit((x, y), epochs=20)
    run.fit((x.flip(0), y.flip(0)), epochs=20)
    run.load_into(net)
    assert run.step == 160
    optimizer = torch.optim.AdamW(alone.parameters(), 1e-3)
    for inputs, targets in ((x, y), (x.flip(0), y.flip(0))):
        for batch in list(zip(inputs.split(4), targets.split(4), strict=True)) * 20:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(alone(batch[0]), batch[1]).backward()
            optimizer.step()
    assert largest_difference(net.state_dict(), alone) == 0.0
    run.close()


def test_a_module_gets_no_weights_of_a_fit_whose_failure_nobody_has_seen(home):
    net, model = make_model("mlp")
    x, _ = make_data("mlp", 4)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    run.fit([x])
    with pytest.raises(potluck.errors.ModelError, match="2 tensors are expected"):
        run.load_into(net)
    run.load_into(net)  # now it is known: these are the weights of now
    run.close()


def test_a_module_gets_the_weights_that_a_cancelled_fit_reached_and_those_of_a_step(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    handle = run.fit(
        (x, y), epochs=10_000, on_step=lambda step, loss: (run.load_into(), handle.cancel())
    )
    run.load_into()
    assert handle.done
    assert run.step >= 1
    assert largest_difference(run.state_dict(), net) == 0.0
    run.close()


def test_weights_told_after_a_step_are_those_of_the_step_that_the_run_gives(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    states = []
    run.fit((x, y), on_step=lambda *_: states.append((run.state_dict(), run.step))).wait()
    for state, step in states:
        alone, rows = copy.deepcopy(net), 4 * step
        train_alone(
            alone,
            x[:rows],
            y[:rows],
            batch=4,
            micro_batch=4,
            epochs=1,
            make_optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
        )
        assert largest_difference(state, alone) == 0.0
    assert [step for _, step in states] == sorted(step for _, step in states)
    run.close()


def test_a_cancelled_fit_stops_between_steps_and_can_go_on(home):
    _, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model).wait()
    handle = run.fit((x, y), epochs=10_000)
    run_on_first_step = []
    handle.listen(lambda frac, text: run_on_first_step.append(text) or handle.cancel())
    with pytest.raises(potluck.handle.CancelledError):
        handle.wait()
    assert run.step >= 1
    done = run.step
    run.fit((x, y)).wait()
    assert run.step == done + 4
    run.close()


def test_the_trace_is_measured_and_in_order(home):
    _, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    run = home.deploy(
        make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2), model
    ).wait()
    run.fit((x, y)).wait()
    trace = run.trace
    assert trace.source == "measured"
    assert len(trace.step_s) == 2
    assert set(trace.busy_s) == {A, B}
    labels = {(event.device, event.label) for event in trace.events if event.op == "run"}
    assert labels == {(A, "0F0"), (A, "0F1"), (B, "1F0"), (B, "1F1")}
    assert all(event.start_s <= event.stop_s for event in trace.events)
    for step in (0, 1):  # one time axis: nothing is computed before its inputs are sent
        sent = next(e for e in trace.events if e.step == step and e.op == "send" and e.peer == B)
        used = next(
            e
            for e in trace.events
            if e.step == step and e.device == B and e.label == "1F0" and e.op == "run"
        )
        assert sent.start_s < used.stop_s
    run.close()


@pytest.mark.long
def test_a_switch_takes_its_turn_while_training_goes_on(home):
    _, model = make_model("mlp")
    x, y = make_data("mlp", 16)
    first = make_plan(model, ((A,), (4,)), micro_batch=4, n_micro_batches=2)
    second = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    straight = home.deploy(first, model).wait()
    straight.fit((x, y), epochs=20).wait()
    run, switched = home.deploy(first, model).wait(), threading.Event()

    def batches():
        for step in range(40):
            if step == 38:
                # however fast the steps are, some are left for the other plan
                assert switched.wait(TIMEOUT_S)
            yield (x[:8], y[:8]) if step % 2 == 0 else (x[8:], y[8:])

    handle = run.fit(batches())
    run.switch(second).wait()
    switched.set()
    history = handle.wait()
    assert run.plan == second
    assert history.losses == pytest.approx(straight.history.losses, abs=1e-6)
    straight.close()
    run.close()


def test_another_optimizer_takes_over_between_two_fits(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 8)
    run = home.deploy(
        make_plan(model, ((A,), (4,)), micro_batch=4), model, optimizer=potluck.AdamW(0.01)
    ).wait()
    run.fit((x, y)).wait()
    run.fit((x, y), optimizer=potluck.AdamW(0.001)).wait()
    alone = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(alone.parameters(), 0.01)
    for rate in (0.01, 0.001):
        optimizer.param_groups[0]["lr"] = rate
        for start in (0, 4):
            torch.nn.functional.cross_entropy(
                alone(x[start : start + 4]), y[start : start + 4]
            ).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert largest_difference(run.state_dict(), alone) == 0.0
    run.close()


@pytest.mark.long
def test_dropout_does_not_depend_on_the_split(home):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(16, 16),
        torch.nn.Linear(16, 4),
    )
    x, y = make_data("mlp", 16)
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    losses = []
    for stages in ([((A,), (4,))], [((B,), (4,)), ((A,), (4,))], [((A, B), (1, 3))]):
        run = home.deploy(
            make_plan(model, *stages, micro_batch=4, n_micro_batches=2), model, seed=5
        ).wait()
        losses.append(run.fit((x, y), epochs=2).wait().losses)
        run.close()
    assert losses[1] == losses[0]
    assert losses[2] == pytest.approx(losses[0], abs=1e-6)


def test_running_statistics_are_those_of_the_shares(home):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 4)
    )
    x, y = make_data("mlp", 8)
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    run = home.deploy(
        make_plan(model, ((A,), (4,)), micro_batch=4, n_micro_batches=2), model
    ).wait()
    run.fit((x, y), epochs=2).wait()
    alone = copy.deepcopy(net)
    train_alone(
        alone,
        x,
        y,
        batch=8,
        micro_batch=4,
        epochs=2,
        make_optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    )
    state = run.state_dict()
    assert torch.equal(state["1.running_mean"], alone.state_dict()["1.running_mean"])
    assert torch.equal(state["1.running_var"], alone.state_dict()["1.running_var"])
    assert (run(x) - alone.eval()(x)).abs().max().item() <= 1e-6
    run.close()


def test_a_bad_batch_is_refused_and_nothing_learned_is_lost(home):
    net, model = make_model("mlp")
    x, y = make_data("mlp", 12)
    run = home.deploy(make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4), model).wait()
    wrong = y.clone()
    wrong[9] = 4
    with pytest.raises(potluck.errors.ModelError, match="target holds 4"):
        run.fit((x, wrong)).wait()
    assert run.step == 2  # the batches before it
    run.fit((x[8:], y[8:])).wait()
    alone = copy.deepcopy(net)
    train_alone(
        alone,
        x,
        y,
        batch=4,
        micro_batch=4,
        epochs=1,
        make_optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
    )
    assert largest_difference(run.state_dict(), alone) == 0.0
    run.close()
