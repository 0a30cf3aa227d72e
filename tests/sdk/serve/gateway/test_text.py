"""Texts over HTTP, asked by OpenAI's own client and as Triton's clients ask: what one machine
writes, whole or as it comes.
"""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.sdk.run.conftest import make_plan
from tests.sdk.run.language_models import language_model, model_of, written
from tests.sdk.serve.gateway.test_gateway import answer_of
from tests.sdk.serve.gateway.test_http_connection import answers_of, request

import potluck
from potluck.errors import NotServed, PotluckError, UserError
from potluck.planning import api
from potluck.planning.plans import Plans
from potluck.serve.gateway import triton
from potluck.testing.internals import serving_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
openai = pytest.importorskip("openai")
parser = pytest.importorskip("prometheus_client.parser")
server = pytest.importorskip("potluck.serve.gateway.server")
TIMEOUT_S = 60.0


class Doubled(torch.nn.Module):
    """No text."""

    def forward(self, x):
        return 2 * x


DOUBLED = potluck.Model.from_torch(Doubled(), torch.ones(2, 2))


class Riddle(Exception):
    """What a template raises, of a kind of its own."""


class Words:
    """A tokenizer of words that are numbers, which lays conversations out with 90 and 91."""

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, tokens):
        return " ".join(map(str, tokens))

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        roles = {"user": 90, "assistant": 91}
        if messages[0]["role"] == "sphinx":
            raise Riddle
        tokens = [t for m in messages for t in (roles[m["role"]], *self.encode(m["content"]))]
        return [*tokens, roles["assistant"]] if add_generation_prompt else tokens


class Halves:
    """A tokenizer of characters that take two tokens each."""

    def encode(self, text):
        return [half for char in text for half in divmod(ord(char) - 256, 97)]

    def decode(self, tokens):
        pairs = zip(tokens[::2], tokens[1::2], strict=False)
        return "".join(chr(256 + 97 * a + b) for a, b in pairs) + "\ufffd" * (len(tokens) % 2)


class Cleaned(Words):
    """A tokenizer that takes spaces away, as those of transformers do."""

    clean_up_tokenization_spaces = True
    pieces = (" n", "'t", " '", "s", " .", " do", " ", "re")

    def decode(self, tokens):
        text = "".join(self.pieces[token % 8] for token in tokens)
        for after in (" .", " ' ", " n't", " 's", " 're"):
            text = text.replace(after, after.strip(" "))
        return text


class Backwards(Words):
    """A tokenizer that changes all that it gave."""

    def decode(self, tokens):
        return super().decode(tokens[::-1])


@pytest.fixture(scope="module")
def lm():
    return language_model()


@pytest.fixture(scope="module")
def home(lm):
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        opened.serve_text(model_of(lm, tokenizer=Words()), "chat", max_queue=2).wait()
        opened.serve_text(model_of(lm), "tokens").wait()
        opened.serve_text(model_of(lm, tokenizer=Halves()), "halves").wait()
        yield opened


@pytest.fixture(scope="module")
def gateway(home):
    with home.gateway(max_body_bytes=20_000) as opened:
        yield opened


@pytest.fixture
def client(gateway):
    address = f"http://127.0.0.1:{gateway.port}/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as opened:
        yield opened


def words(tokens):
    return " ".join(map(str, tokens))


def ask(gateway, path, **document):
    return answer_of(gateway, "POST", path, json.dumps(document))


def test_openai_gets_what_one_machine_writes(client, lm):
    assert {model.id for model in client.models.list()} == {"chat", "tokens", "halves"}
    expected = written(lm, [5, 6, 7], 6)
    how = {"max_tokens": 6, "temperature": 0, "n": 1, "presence_penalty": 0.0, "logit_bias": {}}
    answer = client.completions.create(model="chat", prompt="5 6 7", **how)
    assert answer.choices[0].text == words(expected)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 6)


def test_openai_finds_a_model_and_hears_why_something_is_refused(client):
    assert client.models.retrieve("chat").id == "chat"
    with pytest.raises(openai.NotFoundError, match="no service writes texts by the name 'fish'"):
        client.models.retrieve("fish")
    with pytest.raises(openai.BadRequestError, match="n: is not there in this service") as caught:
        client.completions.create(model="chat", prompt="5", n=2)
    assert caught.value.param == "n"


def test_openai_hears_why_a_stream_ends_early(lm):
    with memory_home(1) as home:
        service = home.serve_text(model_of(lm, tokenizer=Words()), "chat").wait()
        with home.gateway() as gateway:
            address = f"http://127.0.0.1:{gateway.port}/v1"
            with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
                parts = client.completions.create(
                    model="chat", prompt="5", max_tokens=40, temperature=0, stream=True
                )
                next(parts)
                service.stop()
                with pytest.raises(openai.APIError) as caught:
                    list(parts)
        assert caught.value.message not in ("", "An error occurred during streaming")


@pytest.mark.parametrize("kind", ["text", "image_url"])
def test_what_somebody_says_may_come_in_parts_of_words(client, lm, kind):
    said = [{"type": "text", "text": "5 "}, {"type": kind, "text": "6"}]
    how = {"messages": [{"role": "user", "content": said}], "max_tokens": 6, "temperature": 0}
    if kind != "text":
        with pytest.raises(openai.BadRequestError, match="of words"):
            client.chat.completions.create(model="chat", **how)
        return
    answer = client.chat.completions.create(model="chat", **how)
    assert answer.choices[0].message.content == words(written(lm, [90, 5, 6, 91], 6))


def test_a_conversation_as_it_is_written(client, lm):
    expected = written(lm, [90, 5, 6, 91], 6)
    parts = client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "5 6"}],
        max_tokens=6,
        temperature=0,
        stream=True,
    )
    choices = [part.choices[0] for part in parts]
    assert "".join(choice.delta.content or "" for choice in choices) == words(expected)
    assert choices[-1].finish_reason == "length"
    assert len([choice for choice in choices if choice.delta.content]) > 1


def test_a_text_ends_at_words_that_stop_it_and_never_shows_them(client, lm):
    expected = written(lm, [5, 6, 7], 8)
    stop = f" {expected[3]} {expected[4]}"
    shown = words(expected)[: words(expected).index(stop)]
    how = {"model": "chat", "prompt": "5 6 7", "max_tokens": 30, "temperature": 0, "stop": stop}
    answer = client.completions.create(**how)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (shown, "stop")
    parts = [*client.completions.create(**how, stream=True)]
    assert "".join(part.choices[0].text for part in parts) == shown
    assert parts[-1].choices[0].finish_reason == "stop"


def test_no_part_of_a_stop_is_shown_while_a_character_of_it_is_still_to_come(client, lm):
    text = Halves().decode(written(lm, [5, 6, 7], 12))
    for start in range(5):
        how = {"model": "halves", "prompt": [5, 6, 7], "max_tokens": 12, "temperature": 0}
        stop = text[start : start + 2]
        parts = client.completions.create(**how, stop=stop, stream=True)
        shown = "".join(part.choices[0].text for part in parts)
        assert shown == text[: text.index(stop)], start


def test_a_stream_shows_what_the_whole_text_is_where_spaces_are_taken_away(
    client, home, lm, monkeypatch
):
    monkeypatch.setattr(home.texts["chat"].model, "tokenizer", Cleaned())
    n_cleaned = 0
    for first in range(24):
        how = {"prompt": [first, 7], "max_tokens": 12, "temperature": 0}
        tokens = written(lm, how["prompt"], 12)
        parts = client.completions.create(model="chat", **how, stream=True)
        assert "".join(part.choices[0].text for part in parts) == Cleaned().decode(tokens)
        n_cleaned += Cleaned().decode(tokens) != "".join(Cleaned.pieces[t % 8] for t in tokens)
    assert n_cleaned > 5


def test_a_stream_ends_with_an_error_where_what_was_shown_is_another_text_now(
    client, home, monkeypatch
):
    monkeypatch.setattr(home.texts["chat"].model, "tokenizer", Backwards())
    how = {"model": "chat", "prompt": [5, 6], "max_tokens": 12, "temperature": 0}
    with pytest.raises(openai.APIError, match="changed words that were shown"):
        list(client.completions.create(**how, stream=True))
    assert client.completions.create(**how).choices[0].text


def test_a_stream_ends_with_its_usage_where_that_is_asked_for(client):
    how = {"model": "chat", "prompt": "5 6 7", "max_tokens": 4, "temperature": 0, "stream": True}
    *parts, last = client.completions.create(**how, stream_options={"include_usage": True})
    assert all(part.choices and not part.usage for part in parts)
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 3, 4)


@pytest.mark.parametrize("place", ["parameters", "document"])
def test_a_stop_is_heard_wherever_triton_takes_words(gateway, lm, place):
    expected = written(lm, [5, 6, 7], 8)
    stop = f" {expected[3]} {expected[4]}"
    how = {"max_tokens": 30, "stop": stop}
    how = {"parameters": how} if place == "parameters" else how
    _, body, _ = ask(gateway, "/v2/models/chat/generate", text_input="5 6 7", **how)
    assert json.loads(body)["text_output"] == words(expected)[: words(expected).index(stop)]


@pytest.mark.parametrize("name", ["chat", "tokens"])
def test_as_triton_asks(gateway, lm, name):
    expected = words(written(lm, [5, 6, 7], 6))
    prompt = "5 6 7" if name == "chat" else [5, 6, 7]
    asked = {"text_input": prompt, "parameters": {"max_tokens": 6, "temperature": 0}}
    status, body, _ = ask(gateway, f"/v2/models/{name}/generate", **asked)
    assert status == 200
    answer = json.loads(body)
    assert (answer["text_output"], answer["model_name"]) == (expected, name)
    status, body, _ = ask(gateway, f"/v2/models/{name}/generate_stream", **asked)
    events = [json.loads(line[6:]) for line in body.decode().split("\n\n") if line]
    assert "".join(event["text_output"] for event in events) == expected


def test_of_two_that_are_made_at_once_one_has_the_name(lm):
    model = model_of(lm)
    with memory_home(1) as home:
        texts = home.serve_text(model, "both")
        with pytest.raises(UserError, match="'both' already"):
            home.serve_text(model, "both")
        with pytest.raises(UserError, match="'both' already"):
            home.serve(DOUBLED, "both", slo=potluck.Latency(TIMEOUT_S))
        assert texts.wait() is home.texts["both"]
        home.texts["both"].stop()
        with home.serve(DOUBLED, "both", slo=potluck.Latency(TIMEOUT_S)).wait() as service:
            assert service(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]


def test_texts_are_written_where_devices_that_share_rows_would_be_sooner(lm, monkeypatch):
    model, planned = model_of(lm), api.plan

    def plan(*asked):
        shares = (("local-1", "local-2"), (1,) * model.rows)
        shared = make_plan(model, shares, micro_batch=model.rows, training=False)
        return Plans((shared, *planned(*asked)))

    monkeypatch.setattr(api, "plan", plan)
    with memory_home(2) as home:
        service = home.serve_text(model, "tokens").wait()
        for prompt in ([5], [6, 7]):
            tokens = service.generate(prompt, max_new_tokens=4).wait().tokens
            assert tokens == written(lm, prompt, 4)


def test_what_cannot_be_asked_is_not_counted_and_what_failed_is_no_success(lm):
    with memory_home(1) as home, home.gateway() as gateway:
        service = home.serve_text(model_of(lm), "tokens").wait()
        for wrong in ({"max_tokens": 0}, {"top_p": 3}, {"text_input": [1] * 60}):
            asked = {"text_input": [1], "max_tokens": 1} | wrong
            assert ask(gateway, "/v2/models/tokens/generate", **asked)[0] == 400
        assert service.stats.n_asked == 0
        assert len(service.generate([1], max_new_tokens=2).wait().tokens) == 2
        ended = service.generate([1], max_new_tokens=40)
        service.stop()
        with pytest.raises(PotluckError):
            ended.wait()
        done = triton.statistics("tokens", service.stats)["inference_stats"]
        assert (service.stats.n_failed, done["fail"]["count"], done["success"]["count"]) == (
            1,
            1,
            1,
        )


def test_many_at_once_get_their_own_or_are_refused_at_once(gateway, home, lm):
    before = home.texts["tokens"].stats

    def one(i):
        prompt = [1 + i, 2, 3]
        asked = {"text_input": prompt, "max_tokens": 5}
        status, body, _ = ask(gateway, "/v2/models/tokens/generate", **asked)
        return status == 200 and json.loads(body)["text_output"] == words(written(lm, prompt, 5))

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(24)))
    after = home.texts["tokens"].stats
    assert after.n_asked - before.n_asked == 24
    assert after.n_tokens - before.n_tokens == 24 * 5
    chat = home.texts["chat"]
    open_texts = [chat.generate([1, 2], max_new_tokens=10_000) for _ in range(4)]
    with pytest.raises(NotServed, match="4 texts to write"):
        chat.generate([1, 2])
    status, body, headers = ask(gateway, "/v2/models/chat/generate", text_input="1")
    assert status == 503
    assert json.loads(body)["reason"] == "queue-full"
    assert int(headers["Retry-After"]) > 0
    for text in open_texts:
        text.cancel()
    assert ask(gateway, "/v2/models/chat/generate", text_input="1", max_tokens=1)[0] == 200


def test_a_client_that_goes_takes_its_text_with_it(client, home):
    parts = client.completions.create(
        model="chat", prompt="5 6", max_tokens=100_000, temperature=0, stream=True
    )
    next(iter(parts))
    parts.close()
    gone = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.05)):
        if not home.texts["chat"].stats.n_under_way:
            gone.set()
            break
        time.sleep(0.05)
    assert gone.is_set()


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_an_entrance_that_closes_takes_its_texts_with_it(home, monkeypatch, path):
    """Whole ones, too: others waited behind hundreds that nobody got any more."""
    monkeypatch.setattr(server, "CLOSE_S", 1.0)
    chat, turns = home.texts["chat"], serving_of(home).dispatch.turns
    with (
        ExitStack() as stack,
        home.gateway() as opened,
        socket.create_connection(("127.0.0.1", opened.port), TIMEOUT_S) as asking,
    ):
        for device in chat.devices:
            while turns.has_room(device):  # others have it, so that no text is written
                stack.enter_context(turns.turn("another", [device]))
        body = json.dumps({"text_input": "1 2", "max_tokens": 40})
        asking.sendall(request(f"/v2/models/chat/{path}", body))
        while not chat.stats.n_under_way:
            time.sleep(0.01)
        opened.close()
        assert chat.stats.n_under_way == 0


def test_a_whole_text_is_written_for_who_keeps_the_connection_open_and_a_stream_for_all(gateway):
    body = json.dumps({"text_input": "1 2", "max_tokens": 100_000})
    answer = answers_of(gateway, request("/v2/models/chat/generate", body))
    assert answer.startswith("HTTP/1.1 400")
    assert "ask for a stream" in answer
    document = {"text_input": "1 2", "max_tokens": 5}
    whole = json.loads(ask(gateway, "/v2/models/chat/generate", **document)[1])["text_output"]
    stream = request("/v2/models/chat/generate_stream", json.dumps(document))
    events = [row for row in answers_of(gateway, stream).splitlines() if row.startswith("data: ")]
    assert "".join(json.loads(row[6:])["text_output"] for row in events) == whole


@pytest.mark.parametrize(
    ("path", "document", "field", "status"),
    [
        ("/v1/completions", {"model": "fish", "prompt": "1"}, "model", 404),
        ("/v2/models/fish/generate", {"text_input": "1"}, "name", 404),
        ("/v2/models/chat/generate", {}, "text_input", 400),
        ("/v2/models/chat/generate", {"text_input": [1.5]}, "text_input", 400),
        ("/v2/models/chat/generate", {"text_input": "1", "parameters": 3}, "parameters", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "n": 2}, "n", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "logprobs": 3}, "logprobs", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "stop": [3]}, "stop", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "stop": 0}, "stop", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "n": True}, "n", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "logprobs": 0}, "logprobs", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "stream": "no"}, "stream", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "max_tokens": 0}, "max_tokens", 400),
        (
            "/v1/completions",
            {"model": "chat", "prompt": "1", "temperature": 10**400},
            "temperature",
            400,
        ),
        ("/v1/completions", {"model": "chat", "prompt": "1", "top_p": "x"}, "top_p", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1", "top_p": 0}, "top_p", 400),
        ("/v1/completions", {"model": "chat", "prompt": "1 " * 60}, "prompt", 400),
        *(
            ("/v1/completions", {"model": "chat", "prompt": "1", field: value}, field, 400)
            for field, value in (
                ("top_k", 0),
                ("stop", ["9"] * 17),
                ("stop", "9" * 257),
                ("stream_options", 3),
                # whatever would change the text and is not there
                ("response_format", {"type": "json_object"}),
                ("repetition_penalty", 1.1),
                ("min_p", 0.1),
                ("made_up", 0),
            )
        ),
        ("/v1/completions", {"model": "chat", "prompt": [97]}, "prompt", 400),
        ("/v1/completions", {"model": "chat", "prompt": "\ud800"}, "prompt", 400),
        ("/v2/models/chat/generate", {"text_input": ""}, "text_input", 400),
        ("/v2/models/chat/generate", {"text_input": "1", "made_up": 1}, "made_up", 400),
        (
            "/v2/models/chat/generate",
            {"text_input": "1", "parameters": {"beam_width": 2}},
            "beam_width",
            400,
        ),
        (
            "/v1/chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "1 " * 60}]},
            "messages",
            400,
        ),
        (
            "/v1/chat/completions",
            {"model": "chat", "messages": [{"role": "sphinx", "content": "1"}]},
            "messages",
            400,
        ),
        ("/v1/chat/completions", {"model": "chat", "messages": [3]}, "messages", 400),
        (
            "/v1/chat/completions",
            {"model": "chat", "messages": [{"role": "pirate", "content": "1"}]},
            "messages",
            400,
        ),
        (
            "/v1/chat/completions",
            {"model": "tokens", "messages": [{"role": "user", "content": "1"}]},
            "messages",
            400,
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_field(gateway, path, document, field, status):
    got, body, _ = ask(gateway, path, **document)
    assert (got, json.loads(body)["field"]) == (status, field), body


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[" * 5000, b"\xff", b'{"model":"chat","temperature":NaN}']
)
def test_a_body_that_is_no_request_is_refused(gateway, body):
    status, answer, _ = answer_of(gateway, "POST", "/v1/completions", body)
    assert (status, json.loads(answer)["field"]) == (400, "body")


PATHS = ("/v1/completions", "/v1/chat/completions", "/v2/models/chat/generate")
DEAR = {
    "lists": b'{"prompt":[' + b"[]," * 300_000 + b"[]]}",
    "objects": b'{"messages":[' + b"{}," * 300_000 + b"{}]}",
    "fields": b'{"metadata":{' + b'"a":0,' * 20_000 + b'"b":0}}',
    "tokens": b'{"prompt":[' + b"1," * 8_500_000 + b"1]}",
}


@pytest.fixture(scope="module")
def open_gateway(home):
    with home.gateway() as opened:
        yield opened


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", DEAR.values(), ids=DEAR)
def test_what_would_take_much_more_memory_than_its_text_is_not_read(open_gateway, path, body):
    status, answer, _ = answer_of(open_gateway, "POST", path, body)
    assert (status, json.loads(answer)["field"]) == (400, "body")
    assert b"at most" in answer
    assert b"tensor" not in answer  # it sends none


WORDY = {
    "/v1/completions": {"model": "slow", "prompt": "5 6"},
    "/v1/chat/completions": {"model": "slow", "messages": [{"role": "user", "content": "5 6"}]},
    "/v2/models/slow/generate": {"text_input": "5 6", "id": "1"},
}


def with_half_a_character(document):
    """Copies of a document in each of which one text, a name or a value, is half a character."""
    half = "\ud800"
    if isinstance(document, str):
        yield half
    elif isinstance(document, list):
        for place, value in enumerate(document):
            for other in with_half_a_character(value):
                yield [*document[:place], other, *document[place + 1 :]]
    elif isinstance(document, dict):
        for name, value in document.items():
            yield {half if known == name else known: each for known, each in document.items()}
            yield document | {half: value}
            yield from (document | {name: other} for other in with_half_a_character(value))


@pytest.mark.parametrize("path", WORDY)
def test_half_a_character_anywhere_is_answered_in_json(gateway, path):
    asked = {**json.loads(json.dumps(WORDY[path]).replace("slow", "chat")), "max_tokens": 2}
    more = {"stop": ["x"], "parameters": {"seed": 1}, "response_format": {"type": "text"}}
    for document in with_half_a_character(asked | more):
        status, answer, _ = ask(gateway, path.replace("slow", "chat"), **document)
        assert status in (200, 400, 404), (document, answer)
        assert isinstance(json.loads(answer), dict)


@pytest.mark.parametrize("path", WORDY)
def test_nobody_waits_until_a_long_request_is_made_tokens(home, open_gateway, lm, path):
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Words):
        def encode(self, text):
            begun.set()
            assert may_end.wait(TIMEOUT_S)
            return super().encode(text)

    service = home.serve_text(model_of(lm, tokenizer=Slow()), "slow").wait()
    asked = {**WORDY[path], "max_tokens": 2, "temperature": 0, "user": "x" * 100_000}
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, open_gateway, path, **asked)
        try:
            assert begun.wait(TIMEOUT_S)
            assert answer_of(open_gateway, "GET", "/metrics")[0] == 200
            short = {"model": "slow", "prompt": [5], "max_tokens": 1, "temperature": 0}
            assert ask(open_gateway, "/v1/completions", **short)[0] == 200
        finally:
            may_end.set()
        assert slow.result()[0] == 200
    service.stop()


@pytest.mark.parametrize("path", WORDY)
def test_words_that_cannot_be_tokens_enough_are_refused_before_a_tokenizer_sees_them(
    open_gateway, path
):
    long = json.dumps(WORDY[path]).replace("slow", "chat").replace("5 6", " " * 13_000)
    path = path.replace("slow", "chat")
    status, answer, _ = answer_of(open_gateway, "POST", path, long)
    assert status == 400
    assert "at most 12800 characters" in str(json.loads(answer)["error"])


def test_prometheus_reads_what_was_written(gateway):
    _, body, _ = answer_of(gateway, "GET", "/metrics")
    families = {
        family.name: family for family in parser.text_string_to_metric_families(body.decode())
    }
    tokens = {s.labels["service"]: s.value for s in families["potluck_tokens"].samples}
    assert tokens.keys() == {"chat", "tokens", "halves"}
    assert all(value > 0 for value in tokens.values())


def test_a_service_says_what_it_is_and_has_done(home, lm):
    service = home.texts["tokens"]
    service.generate([1, 2], max_new_tokens=3).wait()
    assert repr(service).startswith("<TextService tokens on local-")
    assert "0 refused, 0 under way" in repr(service)


def test_triton_finds_a_model_of_texts_and_is_told_where_to_ask(gateway):
    triton = pytest.importorskip("tritonclient.http")
    with triton.InferenceServerClient(f"127.0.0.1:{gateway.port}") as client:
        assert client.is_model_ready("chat")
        (given,) = client.get_model_metadata("chat")["inputs"]
        assert given == {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    status, body, _ = ask(gateway, "/v2/models/chat/infer", inputs=[])
    assert status == 404
    assert "/v2/models/chat/generate" in json.loads(body)["error"]


def test_services_that_cannot_be_are_refused_in_words(home, lm):
    with pytest.raises(UserError, match="serve_text"):
        home.serve(home.texts["chat"].model, "other", slo=None)
    with pytest.raises(UserError, match="writes no texts"):
        home.serve_text(torch.nn.Linear(2, 2), "other")
    with pytest.raises(UserError, match="'chat' already"):
        home.serve_text(home.texts["chat"].model, "chat")
    with pytest.raises(UserError, match="'chat' already"):
        home.serve(DOUBLED, "chat", slo=potluck.Latency(TIMEOUT_S))
    with pytest.raises(UserError, match="token_s"):
        home.serve_text(home.texts["chat"].model, "other", token_s=-1.0)
    with pytest.raises(UserError, match="priority is a whole number"):
        home.serve_text(home.texts["chat"].model, "other", priority=0.5)
