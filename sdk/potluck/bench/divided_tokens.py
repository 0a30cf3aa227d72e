"""What a token of a language model takes, which keeps keys and values: on one device alone, and on
two among which heads, columns and words are divided.

*In a lab*: a small model on two emulated devices behind shaped links, what one writes, and by what
the plan said. *Simulated*: models of 135 million and a billion parameters in float32. Weights make
the time, so data sheets tell it. A model of many blocks is told from one of one and one of two:
each more adds the same.
"""

from statistics import median
from typing import TYPE_CHECKING

from potluck.bench.llama import LlamaShape, llama

if TYPE_CHECKING:
    from potluck.graph.language_model import LanguageModel
    from potluck.records import Network

LENGTH = 128  # tokens of a text
TOLERANCE_FRAC = 0.5  # of shares: three groups of heads are divided two to one
COMPUTERS = {"pi": "raspberry-pi-5", "jetson": "jetson-orin-nano"}
# bytes per second of the medium, how often a path crosses it, seconds before the first byte
LINKS = {"wired_1000": (125e6, 1, 2e-4), "wifi_300": (37.5e6, 2, 2e-3)}
PROMPT, N_TOKENS = [1, 2, 3], 12
SLOWER = 60.0  # emulated devices than this machine: a token takes a second


LAB_SHAPE = LlamaShape(width=768, heads=12, groups=4, hidden=3072, blocks=2, words=8192)


def model_of(shape: LlamaShape, n_blocks: int) -> "LanguageModel":
    """A model of that shape with so many blocks, and made-up weights.

    Parameters
    ----------
    shape
        Its sizes.
    n_blocks
        How many blocks.
    """
    from potluck.graph.language_model import LanguageModel

    return LanguageModel.from_transformers(llama(shape, n_blocks, LENGTH), max_length=LENGTH)


def lab_tokens(rate: str) -> dict[str, float]:
    """Milliseconds of a token on one emulated device and on two, and by what was predicted.

    Parameters
    ----------
    rate
        Of their links.
    """
    import potluck
    from potluck.home import Home
    from potluck.planning.baselines.single_device import plan_single
    from potluck.planning.evaluate import judge
    from potluck.planning.tensor_parallel import plan_of
    from potluck.sessions.agent_specs import Spec

    specs = [Spec(name=name, slowdown=SLOWER, link_rate=rate) for name in ("a", "b")]
    whole = model_of(LAB_SHAPE, LAB_SHAPE.blocks)
    figures, texts = dict[str, float](), []
    where = f"lab_{rate.split()[0]}_token"
    for word, model in (("alone", whole), ("divided", whole.divided((1, 1)))):
        with Home.lab(specs) as home:
            problem = home.profile(model, train=False).wait().problem(potluck.Inference())
            if model is whole:
                plan = next(plan_single(problem))
            else:
                plan = plan_of(model.name, model.layers(), [*home.devices], 1, training=False)
            predicted_s = judge(problem, plan).latency_s or 0.0
            running = home.deploy(plan, model).wait()
            text = running.generate(PROMPT, max_new_tokens=N_TOKENS).wait()
            running.close()
        texts.append(text.tokens)
        token_s = median(text.token_s[1:])
        figures[f"{where}_{word}_ms"] = 1e3 * token_s
        figures[f"{where}_{word}_prediction_error"] = abs(predicted_s / token_s - 1)
    return {**figures, f"{where}s_that_differ": float(texts[0] != texts[1])}


def simulated_tokens(name: str, shape: LlamaShape) -> dict[str, float]:
    """Milliseconds of a token on one computer, and on two by each link.

    Parameters
    ----------
    name
        Of the shape.
    shape
        Of the model.
    """
    one, two = _token_s(shape, 1), _token_s(shape, 2)
    return {
        f"{name}_{where}_token_ms": 1e3
        * (one[where] + (shape.blocks - 1) * (two[where] - one[where]))
        for where in one
    }


def _token_s(shape: LlamaShape, n_blocks: int) -> dict[str, float]:
    """Seconds of a token through so many blocks."""
    import potluck
    from potluck.planning.baselines.single_device import plan_single
    from potluck.planning.evaluate import judge
    from potluck.planning.tensor_parallel import plan_of
    from potluck.profile.library import HomeSpec, load_device
    from potluck.records import Device

    model = model_of(shape, n_blocks)
    divided = model.divided((1, 1), tolerance_frac=TOLERANCE_FRAC)
    names, work = ("one", "two"), potluck.Inference()
    found = dict[str, float]()
    plan = plan_of(divided.name, divided.layers(), names, 1, training=False)
    for computer, kind in COMPUTERS.items():
        spec = load_device(kind)
        for link, (rate, times, latency_s) in LINKS.items():
            home = HomeSpec(
                name="",
                title="",
                source="",
                devices=tuple(Device(name=name, memory_bytes=2**34) for name in names),
                network=_network(names, rate, times, latency_s),
                specs=dict.fromkeys(names, spec),
                home_at="one",
                file="",
            )
            problem = potluck.estimate(home, divided).problem(work)
            found[f"{computer}_{link}"] = judge(problem, plan).latency_s or 0.0
        alone = potluck.estimate(home, model).problem(work)
        found[f"{computer}_alone"] = judge(alone, next(plan_single(alone))).latency_s or 0.0
    return found


def _network(names: tuple[str, ...], rate: float, times: int, latency_s: float) -> "Network":
    """A medium for each direction of a wire, or one air that every path crosses twice."""
    from potluck.records import Medium, Network, Path

    if times > 1:
        media: tuple[Medium, ...] = (Medium(name="air", capacity_bytes_per_s=rate),)
        paths = {
            (a, b): Path(media=(("air", times),), latency_s=latency_s)
            for a in names
            for b in names
            if a != b
        }
    else:
        media = tuple(Medium(name=f"from {name}", capacity_bytes_per_s=rate) for name in names)
        paths = {
            (a, b): Path(media=((f"from {a}", 1),), latency_s=latency_s)
            for a in names
            for b in names
            if a != b
        }
    return Network(media=media, paths=paths)
