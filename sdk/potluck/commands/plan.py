"""`potluck plan`: plans for a home and a model of the library, judged; a plan file judged; whether
sharing a request pays; files for other planners."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.documents import read_text, tomllib, write_text
from potluck.errors import FileError, PlanError, UserError

if TYPE_CHECKING:
    from potluck.planning import Plans
    from potluck.profile.profiles import Profile
    from potluck.records import Inference, Plan, Problem, QoE, Training

MAX_LAYERS = 32
USAGE = """potluck plan HOME MODEL [options]
       potluck plan judge FILE [HOME MODEL] [options]
       potluck plan groups HOME MODEL [--train WHAT] [--html FILE]
       potluck plan share HOME MODEL [--device NAME] [--helper NAME] [--at RATE] [--html FILE]
       potluck plan export pipedream|metis HOME MODEL --into FOLDER [options]
       potluck plan list [homes|devices|networks|models|planners]"""
EPILOG = """HOME and MODEL are names from `potluck plan list`, or files of your own. MODEL:float16
is in half precision, MODEL:decode writes a text token by token, MODEL:float16:decode does both.
The layers of MODEL:bfloat16-links hand on half the bytes, of MODEL:int8-links a quarter.

examples:
  potluck plan smart-home-2 bert-base --train batch=32
  potluck plan family resnet50 --infer streaming --qoe latency=50ms --qoe energy=2 --explain
  potluck plan family bert-base --with jetson-orin-nano --medium air=50Mbit/s --html plans.html
  potluck plan family bert-base --planner all --save plan.toml
  potluck plan smart-home-2 qwen3-1.7b:float16:decode --infer batch=1
  potluck plan judge plan.toml --without phone
  potluck plan share robot-indoors vgg19"""
# options of `share` alone, and all that some words read
SIDES = frozenset({"device", "helper", "at"})
READ_BY = {"share": SIDES | {"html"}, "list": frozenset({"json"})}
OPTIONS = {"added": "--with"}  # where one is not called as its value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to plan, for what, on which variant of the home, and where the outcome goes."""
    parser.usage, parser.epilog = USAGE, EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="+", metavar="HOME MODEL", help="or one of the words above")
    parser.set_defaults(wrong_usage=parser.error)
    _add_request(parser)
    _add_variant(parser)
    _add_sides(parser)
    _add_outcome(parser)
    parser.set_defaults(defaults=vars(parser.parse_args(["HOME"])))


def _add_request(parser: argparse.ArgumentParser) -> None:
    request = parser.add_argument_group("what is asked")
    mode = request.add_mutually_exclusive_group()
    mode.add_argument(
        "--train",
        metavar="WHAT",
        help="batch=32[,micro_batch=8][,optimizer_copies=2][,bfloat16_moments] (the default)",
    )
    mode.add_argument("--infer", metavar="WHAT", help="batch=1[,streaming]")
    request.add_argument(
        "--qoe",
        action="append",
        default=[],
        metavar="LIMIT",
        help="latency=500ms, energy=20 (J), energy.NAME=5, memory.NAME=2GB, lambda=1000 (J/s); may "
        "be repeated",
    )
    request.add_argument(
        "--planner", default="potluck", metavar="NAME", help="another of the planners, or all"
    )
    request.add_argument(
        "--time", metavar="TIME", help="how long to look for better plans, such as 10s"
    )
    request.add_argument(
        "--order-transfers",
        action="store_true",
        help="rank the first plans with their transfers in order",
    )
    request.add_argument(
        "--refine",
        default="0s",
        metavar="TIME",
        help="so long CP-SAT (ortools) may better that order",
    )
    request.add_argument(
        "--schedules",
        default="",
        metavar="NAMES",
        help="schedules that the best plans are tried with, such as zb-h1,zb-compact, or any",
    )
    request.add_argument(
        "--stage-sizes",
        action="store_true",
        help="stages of the best plans may take micro-batches of their own sizes",
    )
    request.add_argument(
        "--layers", metavar="N", help="merge the model into N layers (default: 32)"
    )


def _add_variant(parser: argparse.ArgumentParser) -> None:
    home = parser.add_argument_group("what if")
    home.add_argument(
        "--with",
        dest="added",
        action="append",
        default=[],
        metavar="DEVICE",
        help="one device more",
    )
    home.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="one device less"
    )
    home.add_argument(
        "--medium", action="append", default=[], metavar="NAME=RATE", help="such as air=50Mbit/s"
    )


def _add_sides(parser: argparse.ArgumentParser) -> None:
    sides = parser.add_argument_group("who shares one request (`share`)")
    sides.add_argument("--device", default="", metavar="NAME", help="where the answer is wanted")
    sides.add_argument(
        "--helper", action="append", default=[], metavar="NAME", help="who helps; may be repeated"
    )
    sides.add_argument(
        "--at", action="append", default=[], metavar="RATE", help="between them, such as 20MB/s"
    )


def _add_outcome(parser: argparse.ArgumentParser) -> None:
    out = parser.add_argument_group("what comes out")
    out.add_argument(
        "--explain", action="store_true", help="what holds the best plan up, and what would help"
    )
    out.add_argument("--save", type=Path, metavar="FILE", help="write the best plan as text")
    out.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with table and picture"
    )
    out.add_argument(
        "--json", action="store_true", help="print the plans as JSON instead of a table"
    )
    out.add_argument("--into", type=Path, metavar="FOLDER", help="where `export` writes")


def main(args: argparse.Namespace) -> None:
    """Do what the first word says; a home's name plans."""
    first, rest = args.words[0], args.words[1:]
    actions: dict[str, tuple[Callable[..., None], tuple[int, ...]]] = {
        "list": (_list, (0, 1)),
        "judge": (_judge, (1, 2, 3)),
        "groups": (_groups, (2,)),
        "share": (_share, (2,)),
        "export": (_export, (3,)),
    }
    action, counts = actions.get(first, (_plan, (1,)))
    if len(rest) not in counts:
        args.wrong_usage("that is too few words or too many; a home and a model are needed to plan")
    _check_read(args, first)
    action(args, *(rest if first in actions else args.words))


def _check_read(args: argparse.Namespace, first: str) -> None:
    """Refuse options that would change nothing."""
    for name, default in args.defaults.items():
        is_read = name in READ_BY[first] if first in READ_BY else name not in SIDES
        if name not in ("words", "wrong_usage") and not is_read and getattr(args, name) != default:
            option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
            args.wrong_usage(f"{option} says nothing here; leave it out")


# --- the five actions -----------------------------------------------------------------------------


def _plan(args: argparse.Namespace, home: str, model: str) -> None:
    from potluck.planning.registry import PLANNERS
    from potluck.units import parse_seconds

    problem = _problem(args, home, model)
    budget_s = None if args.time is None else parse_seconds(args.time)
    refine_s = parse_seconds(args.refine)
    if args.planner == "all" and (args.order_transfers or refine_s > 0):
        raise UserError(
            "planners are compared without turns.",
            next_step="Leave --order-transfers or --planner all out.",
        )
    _sign(f"planning {model} for {home} ...")
    if args.planner == "all":
        _show(args, _compared(problem, [*PLANNERS], budget_s))
    else:
        from potluck.planning.api import solve

        _show(
            args,
            solve(
                problem,
                args.planner,
                budget_s=budget_s,
                order_transfers=args.order_transfers,
                refine_s=refine_s,
                schedules=args.schedules
                if args.schedules == "any"
                else [name.strip() for name in args.schedules.split(",") if name.strip()],
                stage_sizes=args.stage_sizes,
            ),
        )


def _compared(problem: "Problem", planners: list[str], budget_s: float | None) -> "Plans":
    """The best plan of every planner that has one."""
    from potluck.errors import Infeasible
    from potluck.planning.api import OURS, solve
    from potluck.planning.plans import Plans, preference

    # says why, where nothing holds the limits
    found = [solve(problem, OURS, budget_s=budget_s).best]
    for name in planners:
        try:
            found += [solve(problem, name, remedies=False).best] if name != OURS else []
        except Infeasible:
            continue
    return Plans(tuple(sorted(found, key=lambda plan: preference(plan, problem))))


def _judge(args: argparse.Namespace, file: str, home: str = "", model: str = "") -> None:
    from dataclasses import replace

    from potluck.planning import judge
    from potluck.planning.feasibility import breaches
    from potluck.planning.formats import judged
    from potluck.planning.plans import Plans
    from potluck.planning.text import loads

    text = _read(Path(file))
    if "[[stage]]" not in text:  # another planner's
        if not model:
            raise UserError(f"{file} is no plan of ours: say which HOME and MODEL it is for.")
        _show(args, judged(text, _problem(args, home, model)))
        return
    plan = loads(text, file)
    if not (home or plan.home):
        raise UserError(f"{file} does not name its home.", next_step="potluck plan judge FILE HOME")
    if not args.train and not args.infer:
        setattr(args, "train" if plan.training else "infer", f"batch={plan.batch}")
    args.layers = args.layers or plan.stages[-1].stop
    changed = bool(args.added or args.without or args.medium)
    problem = _problem(args, home or plan.home, model or plan.model)
    try:
        found = judge(problem, replace(plan, home="" if changed else plan.home))
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from error
    _show(args, Plans((found,)))
    if not args.json:
        for breach in breaches(problem, found):
            where = f"{breach.device}: " if breach.device else ""
            print(
                f"! {where}needs {breach.needed:.4g} of {breach.limit}, may use "
                f"{breach.available:.4g}"
            )


def _groups(args: argparse.Namespace, home: str, model: str) -> None:
    from potluck.display import dendrogram, markup
    from potluck.planning.baselines.deepcee import chosen_grouping

    args.train = args.train or "batch=64"
    grouping, seconds = chosen_grouping(_problem(args, home, model))
    print(dendrogram.text(grouping, seconds))
    if args.html:
        picture = dendrogram.picture(grouping)
        _write(args.html, markup.page(f"Groups of {home}", picture._repr_html_()))


def _share(args: argparse.Namespace, home: str, model: str) -> None:
    from potluck.display import markup
    from potluck.offload.what_if import BANDWIDTHS, offload_what_if
    from potluck.units import parse_rate

    rates = [parse_rate(text) for text in args.at] or BANDWIDTHS
    found = offload_what_if(home, model, device=args.device, helper=args.helper, bandwidths=rates)
    print(repr(found))
    if args.html:
        _write(args.html, markup.page(f"One request of {model} in {home}", found._repr_html_()))


def _export(args: argparse.Namespace, peer: str, home: str, model: str) -> None:
    from potluck.planning.building_blocks.candidates import micro_batches
    from potluck.planning.formats import metis, pipedream

    if args.into is None:
        args.wrong_usage("export needs --into FOLDER")
    problem = _problem(args, home, model)
    if peer == "pipedream":
        rows = min(micro_batches(problem))
        files = {"graph.txt": pipedream.write(pipedream.of_problem(problem, rows))}
    elif peer == "metis":
        files = metis.files(problem)
    else:
        raise UserError(
            f"there is no export for {peer!r}.", next_step="There are pipedream and metis."
        )
    for name, text in files.items():
        _write(args.into / name, text, folders=True)
    print(f"wrote {len(files)} {'file' if len(files) == 1 else 'files'} to {args.into}")


def _list(args: argparse.Namespace, kind: str = "") -> None:
    from potluck.planning.registry import PLANNERS
    from potluck.profile import library

    kinds = {name: library.names(name) for name in ("homes", "devices", "networks", "models")}
    kinds["planners"] = tuple(PLANNERS)
    if kind and kind not in kinds:
        raise UserError(
            f"there is no list of {kind!r}.", next_step=f"There are {', '.join(kinds)}."
        )
    chosen = {kind: kinds[kind]} if kind else kinds
    if args.json:
        print(json.dumps(chosen, indent=1))
        return
    for name, entries in chosen.items():
        print("\n".join(entries) if kind else f"{name}: {', '.join(entries)}")


# --- what is asked --------------------------------------------------------------------------------


def _problem(args: argparse.Namespace, home: str, model: str) -> "Problem":
    from potluck.profile.estimate import estimate

    max_layers = MAX_LAYERS if args.layers is None else _layers(str(args.layers))
    work = workload(args.train, args.infer)
    profile: Profile = estimate(home, model, max_layers=max_layers, decode_rows=work.batch)
    for kind in args.added:  # before others go: it is connected as one of them is
        profile = profile.with_device(kind)
    for name in args.without:
        profile = profile.without_device(name)
    for text in args.medium:
        name, rate = _pair(text, "--medium", "air=50Mbit/s")
        profile = profile.with_medium(name, rate)
    return profile.problem(work, qoe(args.qoe))


def workload(train: str | None, infer: str | None) -> "Training | Inference":
    """Training or inference from `batch=32,micro_batch=8`.

    Training of 32 rows where neither is given.
    """
    from potluck.records import Inference, Training

    option, text = ("--infer", infer) if infer is not None else ("--train", train or "batch=32")
    known = (
        ("batch", "streaming")
        if infer is not None
        else ("batch", "micro_batch", "optimizer_copies", "bfloat16_moments")
    )
    settings: dict[str, Any] = {"batch": 1} if infer is not None else {"batch": 32}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in known:
            raise UserError(
                f"{option}: nobody knows {key!r}.", next_step=f"Known: {', '.join(known)}."
            )
        if key in ("streaming", "bfloat16_moments"):
            settings[key] = _truth(f"{option} {key}", value)
        else:
            settings[key] = _whole(value, f"{option}: {key}", f"{option} {key}=8")
    return Inference(**settings) if infer is not None else Training(**settings)


def _truth(what: str, value: str) -> bool:
    if value not in ("", "yes", "true", "no", "false"):
        option, _, key = what.partition(" ")
        raise UserError(f"{option}: {key} is yes or no, got {value!r}.", next_step=what)
    return value not in ("no", "false")


def _whole(text: str, what: str, example: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UserError(f"{what} must be a whole number, got {text!r}.", next_step=example)
    return int(text)


def _layers(text: str) -> int:
    found = _whole(text, "--layers", "--layers 32")
    if not found:
        raise UserError("--layers must be 1 or more, got 0.", next_step="--layers 32")
    return found


def qoe(limits: list[str]) -> "QoE":
    """Limits such as `latency=500ms`, `energy=20`, `memory.phone=2GB`."""
    from potluck.records import QoE
    from potluck.units import parse_bytes, parse_seconds

    found: dict[str, Any] = {"memory_bytes": {}, "device_energy_j": {}}
    for limit in limits:
        key, value = _pair(limit, "--qoe", "latency=500ms")
        what, _, device = key.partition(".")
        if what == "latency" and not device:
            if value[-1].isdecimal():
                raise UserError(
                    f"--qoe: {limit!r} has no unit.", next_step=f"Write {limit}s or {limit}ms."
                )
            found["latency_s"] = parse_seconds(value)
        elif what == "memory" and device:
            found["memory_bytes"][device] = parse_bytes(value)
        elif what == "energy" and device:
            found["device_energy_j"][device] = _number(limit, value)
        elif what in ("energy", "lambda") and not device:
            found["energy_j" if what == "energy" else "lambda_j_per_s"] = _number(limit, value)
        else:
            raise UserError(
                f"--qoe: nobody knows the limit {key!r}.",
                next_step="Known: latency, energy, energy.NAME, memory.NAME, lambda.",
            )
    return QoE(**found)


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key or not value:
        raise UserError(
            f"{option}: cannot read {text!r}.",
            next_step=f"Expected something like {option} {example}.",
        )
    return key, value


def _number(limit: str, value: str) -> float:
    try:
        return float(value.removesuffix("J"))
    except ValueError:
        raise UserError(f"--qoe: {limit!r} needs a number of joules.") from None


# --- what comes out -------------------------------------------------------------------------------


def _show(args: argparse.Namespace, plans: "Plans") -> None:
    from potluck.display import headline, html, markup, text

    best = plans.best
    if args.json:
        found = {
            "best": document(best),
            "plans": [document(plan) for plan in plans],
            "notes": plans.notes,
            "watts": plans.watts,
        }
        print(json.dumps(found, indent=1))
    else:
        print(f"{headline.of_plan(best)}\n")
        print(text.plans(plans.items, best, html.MOST_PLANS))
        print(f"\n{text.plan(best, best.problem)}", flush=True)
    explanation = None
    if args.explain:
        _sign("trying what would help ...")
        explanation = best.explain()
    if explanation is not None and not args.json:
        print(f"\n{explanation!r}")
    if args.save:
        best.save(args.save)
    if args.html:
        parts = [html.plans(plans.items, best), html.plan(best, best.problem)]
        parts += [html.explanation(explanation)] if explanation is not None else []
        _write(args.html, markup.page(f"{best.model} on {best.home or 'an imagined home'}", *parts))


def _sign(words: str) -> None:
    """Tell whoever waits what takes so long, also in a log.

    Programs that read our output see nothing of it.
    """
    if sys.stderr is not None:
        print(words, file=sys.stderr, flush=True)


def document(plan: "Plan") -> dict[str, Any]:
    """The plan as JSON data: what its text form says."""
    from potluck.planning.text import dumps

    return tomllib.loads(dumps(plan))


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"cannot read {path}: {getattr(error, 'strerror', 'it is no text')}."
        ) from error


def _write(path: Path, text: str, *, folders: bool = False) -> None:
    if folders:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}.") from error
    write_text(path, text)
