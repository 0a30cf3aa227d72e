"""Texts that devices write together are those that one machine writes, whatever else is written,
whatever the plan, and whoever leaves meanwhile.
"""

import random
import threading

import pytest
from tests.sdk.run.conftest import make_plan
from tests.sdk.run.language_models import (
    GROUPED,
    KINDS,
    LENGTH,
    ROWS,
    SIZES,
    language_model,
    model_of,
    plan_of,
    written,
)
from tests.sdk.run.test_recovery import inject_after

import potluck
from potluck.errors import ModelError, PlanError, RequestFailed, UserError
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of, link_of
from potluck.testing.memory import memory_home
from potluck_wire.messages import Value

torch = pytest.importorskip("torch")
A, B, C = NAMES = tuple(f"local-{i}" for i in (1, 2, 3))
QUICK = ("Llama", "Gemma3")


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


@pytest.fixture(scope="module")
def llama():
    lm = language_model()
    return lm, model_of(lm)


@pytest.fixture
def run(trio, llama):
    made = trio.deploy(plan_of(llama[1], A, B, C), llama[1]).wait()
    yield made
    made.close()


def test_plans_have_room_for_reading_a_prompt(llama):
    lm, model = llama
    widest = max(layer.working_bytes for layer in model.layers(False))
    hidden_bytes = 4 * lm.config.intermediate_size  # of one token
    assert widest >= 2 * min(128, LENGTH) * hidden_bytes


def test_what_a_generation_config_asks_for_and_texts_are_written_without_is_said():
    lm = language_model()
    lm.generation_config.repetition_penalty = 1.3
    with pytest.warns(UserWarning, match=r"says repetition_penalty=1\.3, and texts are written"):
        model_of(lm)


def prompts(n, seed=0, longest=40):
    draw = random.Random(seed)
    return [[draw.randrange(97) for _ in range(draw.randint(1, longest))] for _ in range(n)]


def check(run, lm, given, n=9):
    texts = [run.generate(prompt, max_new_tokens=n) for prompt in given]
    for prompt, text in zip(given, texts, strict=True):
        assert text.wait().tokens == written(lm, prompt, n), len(prompt)
        assert text.reason == "length"


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.long) for k in KINDS]
)
def test_each_kind_of_attention_writes_what_it_writes_on_one_machine(trio, kind):
    lm = language_model(kind)
    model = model_of(lm)
    run = trio.deploy(plan_of(model, A, B), model).wait()
    check(run, lm, prompts(3))
    run.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_eager_attention_of_any_type_of_weights(trio, dtype):
    lm = language_model(dtype=dtype)
    lm.set_attn_implementation("eager")
    model = model_of(lm)
    run = trio.deploy(plan_of(model, A, B), model).wait()
    check(run, lm, prompts(2), n=4)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_types_of_weights_too(trio, dtype):
    lm = language_model(dtype=dtype)
    model = model_of(lm)
    run = trio.deploy(plan_of(model, A, B), model).wait()
    check(run, lm, prompts(3))
    run.close()


def test_more_texts_than_rows_wait_for_each_other_and_none_sees_another(run, llama):
    check(run, llama[0], prompts(ROWS * 3, seed=1))


def test_texts_that_begin_while_others_are_written(run, llama):
    lm, _ = llama
    first, second, third = prompts(3, seed=2)
    long = run.generate(first, max_new_tokens=8)
    coming = iter(long)
    begun = [next(coming)]
    inside = [run.generate(prompt, max_new_tokens=5) for prompt in (second, third)]
    assert [*begun, *coming] == written(lm, first, 8)
    for prompt, text in zip((second, third), inside, strict=True):
        assert text.wait().tokens == written(lm, prompt, 5)


def test_threads_of_their_own(run, llama):
    given, found = prompts(4, seed=3), {}

    def write(i):
        found[i] = [*run.generate(given[i], max_new_tokens=4)]

    threads = [threading.Thread(target=write, args=(i,)) for i in range(len(given))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {i: written(llama[0], prompt, 4) for i, prompt in enumerate(given)}


def test_a_text_ends_at_a_token_that_ends_texts_or_where_there_is_no_more_room(trio):
    lm = language_model()
    (prompt,) = prompts(1, seed=4)
    expected = written(lm, prompt, 12)
    lm.generation_config.eos_token_id = expected[5]
    model = model_of(lm)
    run = trio.deploy(plan_of(model, A, B), model).wait()
    text = run.generate(prompt, max_new_tokens=12).wait()
    assert text.reason == "stop"
    assert text.tokens == expected[: expected.index(expected[5]) + 1]
    run.close()
    lm.generation_config.eos_token_id = None
    model = model_of(lm, rows=1)
    run = trio.deploy(plan_of(model, C), model).wait()
    text = run.generate([1] * (LENGTH - 3), max_new_tokens=12).wait()
    assert text.reason == "length"
    assert text.tokens == written(lm, [1] * (LENGTH - 3), 3)
    run.close()


def test_the_plan_changes_in_the_middle_of_a_text(run, llama):
    lm, model = llama
    given = prompts(2, seed=5, longest=8)
    texts = [run.generate(prompt, max_new_tokens=25) for prompt in given]
    for devices in ((C, A), (B,), (A, B, C)):
        for text in texts:
            n, coming = len(text.tokens), iter(text)
            for _ in range(n + 1):
                next(coming, None)
        run.switch(plan_of(model, *devices)).wait()
    for prompt, text in zip(given, texts, strict=True):
        assert text.wait().tokens == written(lm, prompt, 25)


def test_a_switched_plan_has_the_programs_for_few_texts_too(run, llama):
    _, model = llama
    for devices in ((C, A), (B,), (A, B, C)):
        run.switch(plan_of(model, *devices)).wait()
        assert (*engine_of(run).compiled_plan.infer_rows.values(),) == model.request_rows


@pytest.mark.few(3)
@pytest.mark.parametrize("device", NAMES)
@pytest.mark.parametrize("how", ["kill", "kill_worker", "pull"])
@pytest.mark.parametrize("after", [1, 4, 9, 20])
def test_whoever_is_lost_in_the_middle_the_text_is_the_same(llama, device, how, after):
    lm, model = llama
    given = prompts(3, seed=after)
    with memory_home(3) as home:
        run = home.deploy(plan_of(model, A, B, C), model).wait()
        fault = getattr(memory_of(home), how)
        inject_after(home, [(after, lambda: fault(device))])
        check(run, lm, given)
        link_of(home).watch(None)
        run.close()


@pytest.mark.few(3)
@pytest.mark.parametrize("how", ["kill", "kill_worker", "pull"])
def test_whoever_is_lost_after_a_switch_and_before_a_text_the_text_is_the_same(llama, how):
    """A request of one row needs a program of its own, which the lost one cannot make."""
    lm, model = llama
    with memory_home(3) as home:
        run = home.deploy(plan_of(model, A, B), model).wait()
        run.switch(plan_of(model, C, B)).wait()
        getattr(memory_of(home), how)(C)
        check(run, lm, prompts(1, seed=9), n=4)
        run.close()


def test_the_same_seed_chooses_the_same_text_on_any_plan(trio, llama):
    _, model = llama
    (prompt,) = prompts(1, seed=6)
    how = {"max_new_tokens": 12, "temperature": 1.5, "top_k": 5, "top_p": 0.9}
    found = []
    for devices in ((A,), (B, C)):
        run = trio.deploy(plan_of(model, *devices), model).wait()
        found += [run.generate(prompt, seed=seed, **how).wait().tokens for seed in (0, 1)]
        run.close()
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_whoever_looks_on_and_fails_does_not_end_the_text(run, llama):
    (prompt,) = prompts(1, seed=8)
    calls = []

    def look():
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError

    text = run.generate(prompt, max_new_tokens=4)
    text.listen(look)
    assert text.wait().tokens == written(llama[0], prompt, 4)


def test_who_has_read_enough_ends_it(run, llama):
    given = prompts(2, seed=7)
    text = run.generate(given[0], max_new_tokens=10_000)
    next(iter(text))
    text.cancel()
    assert text.wait().reason == "cancelled"
    check(run, llama[0], given[1:])  # its row is free again


def test_what_is_no_number_ends_its_own_text_and_is_gone_with_it(trio):
    """Keys and values that are no numbers would spoil whoever has their row next."""
    lm = language_model()
    with torch.no_grad():
        lm.get_input_embeddings().weight[96] = float("nan")
    model = model_of(lm, rows=1)
    run = trio.deploy(plan_of(model, A, B), model).wait()
    with pytest.raises(RequestFailed, match="computed no number"):
        run.generate([3, 96, 4]).wait()
    prompt = [5, 6, 7]
    assert run.generate(prompt, max_new_tokens=4).wait().tokens == written(lm, prompt, 4)
    run.close()


# of the likeliest tokens of one row, [candidates]: what a device says instead
LIES = {
    "a token below all": lambda logits, numbers: (logits, numbers * 0 - 1),
    "a token behind the last": lambda logits, numbers: (logits, numbers * 0 + 100),
    "one token that is none": lambda logits, numbers: (logits, numbers + 2**62 * (numbers < 90)),
    "endless": lambda logits, numbers: (torch.arange(8) * 3e38, numbers),
    "the likeliest last": lambda logits, numbers: (logits.flip(0), numbers),
    "no number": lambda logits, numbers: (logits * float("nan"), numbers),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_is_no_choice_of_tokens_ends_its_own_text_and_no_other(
    trio, run, llama, lie, temperature
):
    """A device that was taken over tells it, of the second row."""
    told = {}

    def says(message, buffers):
        if not isinstance(message, Value) or message.shape[0] < 2:
            return [(message, buffers)]
        kind = torch.float32 if message.dtype == "float32" else torch.int64
        rows = torch.frombuffer(bytearray(buffers[0]), dtype=kind).reshape(message.shape)
        told[kind] = message, rows
        if len(told) < 2:
            return []
        (logits_of, logits), (numbers_of, numbers) = told.pop(torch.float32), told.pop(torch.int64)
        logits[1], numbers[1] = lie(logits[1], numbers[1])
        return [
            (of, (bytes(rows.numpy().tobytes()),))
            for of, rows in ((logits_of, logits), (numbers_of, numbers))
        ]

    first, second = prompts(2, seed=11)
    honest = run.generate(first, max_new_tokens=8)
    next(iter(honest))
    memory_of(trio).take_over(C, says)
    spoiled = run.generate(second, max_new_tokens=8, temperature=temperature)
    with pytest.raises(RequestFailed, match=r"no number|is no token of this model"):
        spoiled.wait()
    assert honest.wait().tokens == written(llama[0], first, 8)
    assert all(0 <= token < 100 for token in spoiled.tokens)
    memory_of(trio).take_over(C, lambda message, buffers: [(message, buffers)])
    check(run, llama[0], [second])


class Words:
    """A tokenizer of words that are numbers."""

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def test_words_where_there_is_a_tokenizer(trio):
    lm = language_model()
    model = model_of(lm, tokenizer=Words())
    run = trio.deploy(plan_of(model, A), model).wait()
    expected = " ".join(map(str, written(lm, [5, 6, 7], 4)))
    text = run.generate("5 6 7", max_new_tokens=4).wait()
    assert text.text == expected
    assert repr(text) == f"<Generation of 4 tokens, length: {expected!r}>"
    run.close()


@pytest.mark.parametrize(
    ("prompt", "how", "words"),
    [
        ([], {}, "no token"),
        ([97], {}, "97 is no token of this model; they are 0 to 96"),
        ([-1], {}, "-1 is no token"),
        ([0] * LENGTH, {}, f"{LENGTH} tokens"),
        ("hello", {}, "tokenizer"),
        (torch.tensor([[1, 2]]), {}, "no text of this model"),
        ([1.5], {}, "no text of this model"),
        ({"input_ids": [1]}, {}, "no text of this model"),
        (3, {}, "no text of this model"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"temperature": 10**400}, "temperature"),
        ([1], {"top_k": 0}, "top_k"),
        ([1], {"top_p": "x"}, "top_p"),
        ([1], {"seed": 2**63}, "seed"),
        ([1], {"seed": 0.5}, "seed"),
        ([1], {"top_p": 0.0}, "top_p"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused_in_words(run, prompt, how, words):
    with pytest.raises(UserError, match=words):
        run.generate(prompt, **how)


@pytest.mark.parametrize(
    "how", [{"temperature": 10**30}, {"temperature": 1e-320}, {"top_p": 1e-320}]
)
def test_numbers_of_any_size_choose_a_token(run, how):
    """What raises in the thread that writes would leave every text waiting."""
    text = run.generate([1, 2], max_new_tokens=2, **{"temperature": 1.0, "top_k": 10**40} | how)
    assert len(text.wait().tokens) == 2


def test_models_that_write_are_not_called_and_others_do_not_write(trio, run, llama):
    _, model = llama
    with pytest.raises(ModelError, match=r"run\.generate"):
        run(torch.zeros(2, 1, dtype=torch.int64), *[torch.ones(2, dtype=torch.int64)] * 2)
    shared = make_plan(model, ((A, B), (1, 1)), micro_batch=ROWS, training=False)
    with pytest.raises(PlanError, match="share those of its stage"):
        trio.deploy(shared, model).wait()


def test_a_run_that_has_ended_ends_its_texts(trio, llama):
    _, model = llama
    run = trio.deploy(plan_of(model, A, B), model).wait()
    text = run.generate([1, 2], max_new_tokens=10_000)
    next(iter(text))
    run.close()
    with pytest.raises(potluck.PotluckError):
        text.wait()


@pytest.mark.parametrize("kind", ["Bloom", "Mamba"])
def test_other_ways_to_remember_are_refused_in_words(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    if kind == "Mamba":
        sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2}
    lm = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**sizes)
    )
    with pytest.raises(ModelError, match="whole texts"):
        model_of(lm)
    with pytest.raises(ModelError, match="causal language model"):
        model_of(torch.nn.Linear(2, 2))


CHUNKS = GROUPED | {"head_dim": 8, "intermediate_size_mlp": 64, "num_local_experts": 4}


@pytest.mark.parametrize(
    ("config", "special", "words"),
    [
        # the trial's few tokens are all in the first chunk, and are all scaled by one
        ("Llama4Text", CHUNKS | {"attention_chunk_size": 12}, "chunked_attention"),
        (
            "Llama4Text",
            CHUNKS | {"layer_types": ["full_attention"] * 3, "no_rope_layers": [1, 0, 1]},
            "length of the cache",
        ),
        ("Doge", GROUPED | {"keep_window_size": LENGTH - 1}, "max_length of 49 at most"),
        ("Bert", SIZES | {"is_decoder": True}, "whole texts"),
        ("XLM", {"n_words": 97, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, "whole texts"),
        ("Fuyu", {"text_config": GROUPED | {"model_type": "persimmon"}}, "vocab_size"),
        # says a window and looks at all
        ("Moshi", GROUPED | {"ffn_dim": 64, "sliding_window": 20}, "answers otherwise"),
    ],
)
def test_what_a_short_trial_does_not_show_is_refused_and_the_model_stays_as_it_was(
    config, special, words
):
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{config}Config")(**special)
    lm = transformers.AutoModelForCausalLM.from_config(made).eval()
    head = lm.get_output_embeddings()
    with pytest.raises(ModelError, match=words):
        model_of(lm)
    assert lm.get_output_embeddings() is head


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_a_module_stays_as_it_was_so_that_several_models_are_made_of_it(trio, kind):
    lm = language_model(kind)
    modules = [*lm.named_modules()]
    models = [model_of(lm, rows=rows) for rows in (1, 2)]
    assert [*lm.named_modules()] == modules
    for model in models:
        run = trio.deploy(plan_of(model, A, B), model).wait()
        check(run, lm, prompts(1, seed=8), n=2)
        run.close()


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"max_length": 65}, {"n_candidates": 98}])
def test_sizes_that_cannot_be_are_refused(wrong):
    with pytest.raises(ModelError, match=f"{next(iter(wrong))} is a whole number"):
        model_of(language_model(), **wrong)
