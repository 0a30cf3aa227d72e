"""`potluck demo`: four unequal devices on this machine learn to read digits and name two
photographs, together.

The agents are real: processes of their own, found by mDNS, paired by their codes, talking over
encrypted sockets. Only their speed, links, memory and power are emulated, and what is emulated or
modelled says so.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import potluck
from potluck import handle, units
from potluck.display import (
    chart,
    chrome_trace,
    headline,
    html,
    markup,
    progress,
    tables,
    text,
    timeline,
    trace_viewer,
)
from potluck.display.png import save_png
from potluck.errors import FileError, HomeError, PotluckError, UserError
from potluck.records import Plan, Trace

if TYPE_CHECKING:
    from potluck.run.run import Run

BATCH = 64
MICRO_BATCH = 16
LR = 3e-3
# of losses from 2.3 down: rounding, where devices share a stage and sum in another order; else 0
TOLERANCE = 1e-5
STREAMED = 4  # times both photographs, so that the stream has a steady rate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `potluck demo`."""
    parser.add_argument(
        "--out", type=Path, default=Path("potluck-demo"), help="folder for pictures and traces"
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps (default 60)")


def main(args: argparse.Namespace) -> int:
    """Run the demo; returns the exit code."""
    import torch

    if args.steps < 2:
        raise UserError(f"the demo trains for 2 steps or more, got {args.steps}.")
    torch.set_num_threads(1)  # the emulated devices need the other cores
    handle.show_with(progress.attach)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot make the folder {args.out}: {error.strerror}.", path=str(args.out)
        ) from error
    begun_s = time.monotonic()
    with _demo_home() as home:
        fragments = [html.members([home.devices[name] for name in home.devices.ready])]
        first, *digits = _train(home, args.steps, args.out)
        fragments = [first, *fragments, markup.heading("Digits, learned together"), *digits]
        fragments += [
            markup.heading("Photographs, named together"),
            *_name_photographs(home, args.out),
        ]
    markup.save(args.out / "demo.html", "potluck demo", *fragments)
    _print_line(f"\nDone in {units.duration(time.monotonic() - begun_s)}.")
    _print_line(
        f"Each instruction: {args.out / 'training.trace.html'}, or training.trace.json at "
        "https://ui.perfetto.dev (it stays in your browser)."
    )
    _print_line(f"All on one page: {(args.out / 'demo.html').resolve()}")
    return 0


@contextmanager
def _demo_home() -> Iterator[potluck.Home]:
    """Start four agents, find them by mDNS, pair with the code that each shows."""
    from potluck.sessions.agent_specs import DEMO
    from potluck.sessions.events import Address
    from potluck.sessions.local_agents import READY_S, LocalAgents

    _heading("A home of four devices")
    agents = LocalAgents(DEMO, trust=None, announce=True, extra=["--pair"])
    wanted = {agent.address for agent in agents.agents}

    # they announce themselves once they are ready
    def are_here(found: Mapping[str, tuple[Address, ...]]) -> bool:
        return wanted <= {address for addresses in found.values() for address in addresses}

    try:
        with potluck.Home.discover(
            READY_S, state=agents.directory / "notebook", enough=are_here
        ) as home:
            found = {address for member in home.devices.values() for address in member.addresses}
            for agent in agents.agents:
                if agent.address not in found:
                    raise HomeError(
                        "was started but not found by mDNS.",
                        device=agent.name,
                        next_step="Run `potluck doctor`.",
                    )
                _print_line(f"  found {agent.name} at {agent.address}")
            # by address: there may be other devices of these names, such as those of another demo
            paired = home.pair_all({str(agent.address): agent.code for agent in agents.agents})
            _print_line("  paired, each with the code that it showed\n")
            _print_line(text.render(tables.members(paired)))
            yield home
    finally:
        agents.close()


# --- training -------------------------------------------------------------------------------------


def _train(home: potluck.Home, n_steps: int, out: Path) -> list[str]:
    """Train on the digits, switch plans in the middle, compare with one machine.

    Returns what to show in HTML, the headline first.
    """
    import torch

    from potluck.samples import Digits, digits_network, train_on_one_machine

    _heading("Training a small CNN on real digits")
    digits, alone = Digits.load(), digits_network()
    model = potluck.Model.from_torch(
        digits_network(),
        digits.train_images[:4],
        loss=torch.nn.CrossEntropyLoss(),
        example_targets=digits.train_labels[:4],
        name="digits",
    )
    profile = home.profile(model, rows=(4, 8, 16)).wait()
    plans = potluck.plan(profile, potluck.Training(batch=BATCH, micro_batch=MICRO_BATCH))
    first, other = _two_plans(plans)
    summary = headline.of_plan(plans.best)
    _print_line(f"  {summary}\n")
    _print_line(text.plans(plans.items, plans.best, 6))
    _print_line(
        "\n"
        + text.plan(first, profile.problem(potluck.Training(batch=BATCH, micro_batch=MICRO_BATCH)))
    )

    run = home.deploy(first, model, optimizer=potluck.AdamW(lr=LR)).wait()
    batches, half = list(digits.batches(BATCH, n_steps)), n_steps // 2
    losses = list(run.fit(batches[:half]).losses)
    _show_traces(run, out, "training")
    fragments = [run._repr_html_()]

    _heading(
        f"Switching to another plan after {half} steps: {_where(first)} becomes {_where(other)}"
    )
    run.switch(other).wait()
    fragments.append(markup.heading(f"After a switch of plans at step {half}", level=3))
    losses += run.fit(batches[half:]).losses
    trained = digits_network(seed=1)  # other weights, to be overwritten
    run.load_into(trained)
    _print_line(text.comparison(_predicted(run), run.trace))

    reference = train_on_one_machine(alone, iter(batches), micro_batch=MICRO_BATCH, lr=LR)
    _check_losses(losses, reference)
    _print_line(
        f"  test accuracy {digits.accuracy(trained):.1%}; trained on one machine "
        f"{digits.accuracy(alone):.1%}"
    )
    curves = chart.loss({"four devices": losses, "one machine": reference})
    save_png(curves, out / "loss.png")
    return [markup.words(summary), *fragments, run._repr_html_(), html.picture(curves)]


def _two_plans(plans: Sequence[Plan]) -> tuple[Plan, Plan]:
    """The fastest plan over several devices, and the fastest over several others."""
    first, *others = (plan for plan in plans if len(plan.devices) > 1)
    other = next((plan for plan in others if set(plan.devices) != set(first.devices)), None)
    if other is None:
        raise PotluckError(
            "there are no two plans to choose from.", next_step="Give the home more devices."
        )
    return first, other


def _where(plan: Plan) -> str:
    return " | ".join(", ".join(stage.devices) for stage in plan.stages)


def _check_losses(losses: Sequence[float], reference: Sequence[float]) -> None:
    worst = max(abs(a - b) for a, b in zip(losses, reference, strict=True))
    equal = (
        f"at most {worst:.1e} off in any step, by rounding ({TOLERANCE:g} is allowed)"
        if worst
        else "bit for bit"
    )
    _print_line(f"\n  loss {losses[0]:.3f} → {losses[-1]:.3f}, as on one machine: {equal}")
    if worst > TOLERANCE:
        raise PotluckError(
            f"the losses differ by {worst:.1e} from one machine, more than {TOLERANCE:g}."
        )


# --- inference ------------------------------------------------------------------------------------


def _name_photographs(home: potluck.Home, out: Path) -> list[str]:
    """Run EfficientNet-Lite0 split over the devices on two photographs.

    Compare with the unsplit model.
    """
    import torch

    from potluck.samples import IMAGENET_NAMES, efficientnet_lite0, photographs

    _heading("EfficientNet-Lite0, pretrained, split over the devices")
    network, (names, images) = efficientnet_lite0(), photographs()
    model = potluck.Model.from_torch(network, images[:1], name="efficientnet-lite0")
    profile = home.profile(model, train=False, rows=(1,), repeats=1).wait()
    stream = potluck.Inference(batch=1, streaming=True)
    plans = potluck.plan(profile, stream)
    widest = max(plans, key=lambda plan: len(plan.stages))
    _print_line(text.plan(widest, profile.problem(stream)))

    run = home.deploy(widest, model).wait()
    outputs = run(images.repeat(STREAMED, 1, 1, 1))[: len(images)]
    with torch.no_grad():
        unsplit = torch.cat([network(images[i : i + 1]) for i in range(len(images))])
    for name, row in zip(names, outputs.softmax(1), strict=True):
        best = int(row.argmax())
        _print_line(
            f"  {name}: {IMAGENET_NAMES.get(best, 'class')} ({best}), {float(row[best]):.0%}"
        )
    _print_line(
        "  largest difference from the unsplit model "
        f"{float((outputs - unsplit).abs().max()):.1e}\n"
    )
    _show_traces(run, out, "inference")
    return [run._repr_html_()]


# --- showing --------------------------------------------------------------------------------------


def _show_traces(run: "Run", out: Path, name: str) -> None:
    """Print predicted against measured; write a timeline as PNG and a Chrome trace."""
    predicted, measured = _predicted(run), run.trace
    _print_line(text.comparison(predicted, measured))
    picture = timeline.gantt(timeline.typical(predicted), timeline.typical(measured))
    save_png(picture, out / f"{name}.timeline.png")
    devices = run.problem.devices if run.problem else ()
    watts = [chrome_trace.modelled_watts(trace, devices) for trace in (predicted, measured)]
    chrome_trace.save(out / f"{name}.trace.json", predicted, measured, watts=watts)
    title = f"{name}: predicted and measured"
    trace_viewer.save(out / f"{name}.trace.html", title, predicted, measured, watts=watts)


def _predicted(run: "Run") -> Trace:
    predicted = run.predicted
    if predicted is None:
        raise PotluckError("this run was deployed without a profile.")
    return predicted


def _heading(words: str) -> None:
    _print_line(f"\n{words}\n{'=' * len(words)}")


def _print_line(words: str) -> None:
    print(words, flush=True)
