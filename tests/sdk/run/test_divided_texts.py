"""Language models divided by tensor write what one machine writes: whatever kind of attention, in
whatever proportion, and whoever is lost meanwhile.
"""

import random

import pytest
from tests.sdk.run.language_models import KINDS, ROWS, SIZES, language_model, model_of, written
from tests.sdk.run.test_recovery import inject_after

from potluck.errors import ModelError
from potluck.planning.tensor_parallel import plan_of
from potluck.testing.faults import memory_of
from potluck.testing.internals import link_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
QUICK = ("Llama", "GPT2")


def prompts(n, seed=0, longest=40):
    draw = random.Random(seed)
    return [[draw.randrange(97) for _ in range(draw.randint(1, longest))] for _ in range(n)]


def by_lanes(model, devices):
    return plan_of(model.name, model.layers(), devices, model.rows, training=False)


def check(run, lm, given, n=7):
    texts = [run.generate(prompt, max_new_tokens=n) for prompt in given]
    for prompt, text in zip(given, texts, strict=True):
        assert text.wait().tokens == written(lm, prompt, n), len(prompt)


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.long) for k in KINDS]
)
def test_every_kind_of_attention(kind):
    lm = language_model(kind)
    model = model_of(lm).divided((1, 1), tolerance_frac=1.0)
    with memory_home(2) as home:
        run = home.deploy(by_lanes(model, [*home.devices]), model).wait()
        check(run, lm, prompts(ROWS * 2))
        run.close()


def drawn(seed):
    """A model of a random shape, and a proportion."""
    rng = random.Random(seed)
    groups, shared = rng.randint(2, 4), rng.randint(1, 3)
    size = 2 * rng.randint(1, 4)
    sizes = SIZES | {
        "vocab_size": rng.randint(97, 160),
        "hidden_size": groups * shared * size,
        "intermediate_size": rng.randint(8, 70),
        "num_attention_heads": groups * shared,
        "num_key_value_heads": groups,
        "num_hidden_layers": rng.randint(1, 3),
        "tie_word_embeddings": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.5,
        "mlp_bias": rng.random() < 0.5,
    }
    torch.manual_seed(seed)
    lm = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    for parameter in lm.parameters():
        parameter.data.mul_(3)
    return lm, rng.choice([(1, 1), (2, 1), (1, 3)] + [(1, 1, 1), (1, 1, 2)] * (groups > 2))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 30))]
)
def test_random_shapes_in_random_proportions(seed):
    lm, shares = drawn(seed)
    model = model_of(lm).divided(shares, tolerance_frac=3.0)
    with memory_home(len(shares)) as home:
        run = home.deploy(by_lanes(model, [*home.devices]), model).wait()
        check(run, lm, prompts(ROWS + 1, seed))
        run.close()


def test_each_device_has_the_keys_and_values_of_its_own_heads_alone():
    whole = model_of(language_model())
    model = whole.divided((1, 1))
    layers = model.layers()
    kept = [sum(y.buffer_bytes for y in layers if y.lane == lane) for lane in (0, 1)]
    assert kept[0] == kept[1]
    assert sum(kept) < 1.02 * sum(layer.buffer_bytes for layer in whole.layers())
    weights = [sum(y.parameter_bytes for y in layers if y.lane == lane) for lane in (0, 1)]
    assert max(weights) < 0.52 * sum(layer.parameter_bytes for layer in whole.layers())


def test_of_the_words_only_the_best_cross():
    whole = model_of(language_model())
    *_, last, chosen = whole.divided((1, 1)).layers()
    assert (last.lane, chosen.lane) == (1, 0)
    assert sum(edge.output_bytes for edge in last.edges) == whole.n_candidates * (4 + 8)


@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["kill", "kill_worker", "pull"])
@pytest.mark.parametrize("after", [3, 30])
@pytest.mark.parametrize("lane", [0, 1])
def test_whoever_is_lost_in_the_middle_the_text_is_the_same(how, after, lane):
    lm = language_model()
    model = model_of(lm).divided((1, 1))
    with memory_home(3) as home:
        devices = [*home.devices][:2]
        run = home.deploy(by_lanes(model, devices), model).wait()
        fault = getattr(memory_of(home), how)
        inject_after(home, [(after, lambda: fault(devices[lane]))])
        check(run, lm, prompts(3, seed=after))
        link_of(home).watch(None)
        run.close()


def test_the_plan_changes_in_the_middle_of_a_text():
    lm = language_model()
    model = model_of(lm).divided((1, 1))
    with memory_home(3) as home:
        a, b, c = home.devices
        run = home.deploy(by_lanes(model, [a, b]), model).wait()
        given = prompts(2, seed=5, longest=8)
        texts = [run.generate(prompt, max_new_tokens=15) for prompt in given]
        for devices in ([c, a], [b, b]):
            next(iter(texts[0]))
            run.switch(by_lanes(model, devices)).wait()
        for prompt, text in zip(given, texts, strict=True):
            assert text.wait().tokens == written(lm, prompt, 15)
        run.close()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"shares": (1, 1), "sequence": True}, "by positions"),
        ({"shares": (1, 5)}, "too few for 1:5"),
        ({"shares": (1,)}, "two shares or more"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_words(how, words):
    with pytest.raises(ModelError, match=words):
        model_of(language_model()).divided(**how)


def test_it_is_no_more_called_or_saved_than_the_whole_one(tmp_path):
    model = model_of(language_model()).divided((1, 1))
    with pytest.raises(ModelError, match="a language model writes texts"):
        model.check_inputs(torch.zeros(1, 1))
    with pytest.raises(ModelError, match="made anew from its module") as refused:
        model.save(tmp_path / "m")
    assert "save_pretrained" in refused.value.next_step
    assert model.request_rows == (1, ROWS)
