"""What is in the way of an export is said in words: autocast, caches in outputs, lengths that are
not taken.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.sdk.graph.models import CASES

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.segment import loads

torch = pytest.importorskip("torch")
nn = torch.nn


class Cast(nn.Module):
    """Its middle is computed under autocast, switched on or off."""

    def __init__(self, enabled):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)
        self.enabled = enabled

    def forward(self, x):
        h = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            h = self.middle(h)
        return self.last(h.float())


TARGETS = {"loss": nn.functional.cross_entropy, "example_targets": torch.tensor([0, 1])}


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["residual", "decoder"])
def test_no_model_is_made_under_autocast(name, dtype):
    net, inputs = CASES[name].make(), CASES[name].inputs(2)
    with (
        torch.autocast("cpu", dtype=dtype),
        pytest.raises(
            ModelError, match=r"under torch\.autocast\('cpu'\).*net\.to\(torch\.bfloat16\)"
        ),
    ):
        Model.from_torch(net, inputs)
    with torch.autocast("cpu", dtype=dtype), torch.autocast("cpu", enabled=False):
        assert Model.from_torch(net, inputs).layers()


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [{}, TARGETS], ids=["inference", "training"])
def test_autocast_inside_is_refused_with_what_to_do_and_switched_off_it_is_nothing(more):
    x = torch.randn(2, 8)
    with pytest.raises(
        ModelError,
        match=r"computes under torch\.autocast.*convert yourself: x\.to\(torch\.bfloat16\)",
    ):
        Model.from_torch(Cast(enabled=True), x, **more)
    model = Model.from_torch(Cast(enabled=False), x, **more)
    assert (
        sum(p.name.endswith("weight") for p in model.segment(0, len(model.layers()))[1].parameters)
        == 3
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bart"])
def test_a_cache_in_the_output_is_told_by_its_name_and_how_to_switch_it_off(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"vocab_size": 32}
    if kind == "llama":
        config = transformers.LlamaConfig(
            **small,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
        net = transformers.LlamaForCausalLM(config)
    elif kind == "gpt2":
        net = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**small, n_embd=16, n_layer=1, n_head=2)
        )
    else:
        config = transformers.BartConfig(
            **small,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            max_position_embeddings=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            forced_eos_token_id=None,
            decoder_start_token_id=2,
        )
        net = transformers.BartForConditionalGeneration(config)
    ids = torch.randint(3, 32, (2, 6))
    with pytest.raises(
        ModelError, match=r"holds a \w*Cache, .*net\.config\.use_cache = False.*the logits alone"
    ):
        Model.from_torch(net.eval(), ids)


@pytest.mark.long
def test_what_the_words_say_about_a_cache_is_enough():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    net = transformers.LlamaForCausalLM(config).eval()
    net.config.use_cache = False
    assert Model.from_torch(net, torch.randint(3, 32, (2, 6))).layers()


@dataclass
class Strange:
    logits: torch.Tensor


class Answering(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.linear, self.answer = nn.Linear(8, 4), answer

    def forward(self, x):
        return self.answer(self.linear(x))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Strange, "output holds a Strange, which is no tensor.*dicts"),
        (lambda y: (y, None), "output_1 is None, which is no tensor"),
        (lambda y: {"y": y, "scale": 2.5}, r"output_1 is 2\.5, which is no tensor"),
        (lambda y: [y, "name"], "output_1 is 'name', which is no tensor"),
    ],
)
def test_an_output_that_is_no_tensor_is_told_by_what_and_where_it_is(answer, says):
    with pytest.raises(ModelError, match=says):
        Model.from_torch(Answering(answer), torch.randn(2, 8))


class Positions(nn.Module):
    """Rows of a table are added to tokens; `kind` says how the table is read."""

    def __init__(self, kind, size):
        super().__init__()
        self.kind = kind
        self.tokens = nn.Embedding(20, 8)
        self.table = nn.Embedding(size, 8)
        self.register_buffer("ids", torch.arange(size)[None], persistent=False)

    def forward(self, ids):
        n, h = ids.shape[1], self.tokens(ids)
        if self.kind == "buffer":
            return h + self.table(self.ids[:, :n])
        if self.kind == "weights":
            return h + self.table.weight[:n]
        if self.kind == "loop":
            return torch.stack([h[:, i] + self.table.weight[i] for i in range(n)], 1)
        if self.kind == "pairs":
            return (h.reshape(len(h), -1, 2, 8) + self.table.weight[:2]).reshape(len(h), n, 8)
        return h + self.table.weight


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["buffer", "weights"])
@pytest.mark.parametrize("size", [6, 7, 512])
def test_a_table_of_positions_sets_the_longest_sequence(kind, size):
    net = Positions(kind, size)
    model = Model.from_torch(net, torch.randint(0, 20, (2, 5)), sequence_dims=(1,))
    for length in (1, 2, size):
        assert model.check_inputs(torch.zeros(3, length, dtype=torch.int64)) == 3
    for length in (size + 1, 4 * size):
        with pytest.raises(
            ModelError, match=rf"a sequence of {length} is given; the model takes 1 to {size}"
        ):
            model.check_inputs(torch.zeros(3, length, dtype=torch.int64))


def test_a_table_sets_the_longest_sequence_in_training_too():
    net, ids = Positions("weights", 16), torch.randint(0, 20, (2, 5))
    model = Model.from_torch(
        net,
        ids,
        loss=lambda y, t: ((y - t[..., None]) ** 2).mean(),
        example_targets=ids.float(),
        sequence_dims=(1, 1),
    )
    for length in (3, 16):
        ids = torch.zeros(2, length, dtype=torch.int64)
        assert model.check_inputs(ids, ids.float(), train=True) == 2
    with pytest.raises(ModelError, match="a sequence of 17 is given; the model takes 1 to 16"):
        model.check_inputs(
            *[torch.zeros(2, 17, dtype=dtype) for dtype in (torch.int64, torch.float32)], train=True
        )


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("loop", "for one length of its sequence only, 6.*Leave out sequence_dims"),
        ("whole", "for one length of its sequence only, 6.*Leave out sequence_dims"),
        ("pairs", "only multiples of 2 as lengths of its sequence.*Leave out sequence_dims"),
    ],
)
def test_what_takes_one_length_or_some_is_told_by_them(kind, says):
    with pytest.raises(ModelError, match=says):
        Model.from_torch(Positions(kind, 6), torch.randint(0, 20, (2, 6)), sequence_dims=(1,))


class Slices(nn.Module):
    """Takes parts of its sequence."""

    def __init__(self, taken):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)
        self.taken, self.strided = taken, nn.Conv1d(8, 8, 2, stride=2)
        self.register_buffer("causal", torch.ones(16, 16).tril().view(1, 16, 16))

    def forward(self, x):
        return self.last(self.taken(self, self.first(x), x.shape[1]))


def attended(net, h, n):
    odds = (h @ h.transpose(1, 2)).masked_fill(net.causal[:, :n, :n] == 0, float("-inf"))
    return odds.softmax(-1) @ h


# what is taken, the shortest and the longest sequence, and one that is not taken
SLICES = {
    "a mask cut on two sides": (attended, (1, 15), 16),
    "each and the one before": (lambda net, h, n: h[:, 1:] - h[:, :-1], (3, 40), 2),
    "every other one": (lambda net, h, n: h[:, ::2].mean(1, keepdim=True), (3, 40), 2),
    "a stride": (lambda net, h, n: net.strided(h.transpose(1, 2)).transpose(1, 2), (4, 41), 3),
    "the first ones": (lambda net, h, n: h[:, :5].cumsum(1), (6, 40), 5),
}


@pytest.mark.long
@pytest.mark.parametrize(("taken", "lengths", "other"), SLICES.values(), ids=SLICES)
def test_parts_of_a_sequence_are_taken_at_all_lengths_but_those_that_torch_leaves_out(
    taken, lengths, other
):
    torch.manual_seed(0)
    net = Slices(taken).eval()
    model = Model.from_torch(net, torch.randn(2, 7, 4), sequence_dims=(1,))
    part = TrainingSegment(loads(model.document(0, len(model.layers()))))
    for name in part.names():
        part.write(name, model.state()[name])
    for length in {*lengths, 7, 8, 13}:
        x = torch.randn(3, length, 4)
        assert model.check_inputs(x) == 3
        (answer,) = part.forward((x,))
        torch.testing.assert_close(answer, net(x))
    with pytest.raises(ModelError, match=f"a sequence of {other} is given; the model takes"):
        model.check_inputs(torch.randn(3, other, 4))


class Packed(torch.nn.Module):
    def __init__(self, look):
        super().__init__()
        self.layer, self.look = torch.nn.GRU(4, 3, batch_first=True), look

    def forward(self, x, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.look(self.layer(packed)[0])


@pytest.mark.parametrize(
    ("look", "advice"),
    [
        (lambda packed: packed.data.sum(), "a mask of the lengths"),
        (lambda packed: torch.tanh(packed[0]), "a mask of the lengths"),
        (lambda packed: torch.nn.utils.rnn.PackedSequence(*packed), "a mask of the lengths"),
        (lambda packed: torch.nn.utils.rnn.pad_packed_sequence(packed)[0], r"x\.size\(1\)"),
        (
            lambda packed: torch.nn.utils.rnn.pad_packed_sequence(packed, total_length=4)[0],
            r"x\.size\(1\)",
        ),
    ],
)
def test_sizes_of_the_data_of_packed_sequences_are_told_what_to_do(look, advice):
    with pytest.raises(ModelError, match=advice):
        Model.from_torch(Packed(look), (torch.randn(4, 5, 4), torch.tensor([5, 3, 2, 2])))


def test_a_change_that_cannot_be_followed_is_named():
    class Bounded(torch.nn.Linear):
        def forward(self, x):
            self.weight.data.clamp_(-0.1, 0.1)
            return super().forward(x)

    with pytest.raises(ModelError, match=r"weight\.data\.clamp_.*parametrize"):
        Model.from_torch(Bounded(4, 3), torch.randn(3, 4))


def test_models_are_made_in_several_threads():
    """torch's exporter keeps what it is at in globals."""
    nets = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, n)) for n in (2, 3, 4, 5)]

    def made(net):
        return Model.from_torch(net, torch.randn(2, 8))

    with ThreadPoolExecutor(len(nets)) as pool:
        models = list(pool.map(made, nets))
    assert [m.segment(0, len(m.layers()))[1].outputs[0].shape[1] for m in models] == [2, 3, 4, 5]


class Moody(nn.Module):
    """It can be exported, and fails where it is called otherwise."""

    def __init__(self):
        super().__init__()
        self.layer, self.sizes = nn.Linear(4, 4), {}

    def forward(self, x):
        if not torch.compiler.is_exporting():
            return self.layer(x) * self.sizes["x"]
        return self.layer(x)


@pytest.mark.parametrize("train", [False, True])
def test_what_fails_only_when_it_is_called_is_told_with_its_line(train):
    x = torch.randn(4, 4)
    with_loss = {"loss": nn.functional.mse_loss, "example_targets": x} if train else {}
    with pytest.raises(
        ModelError, match=r"does not run when it is called.*sizes\[\"x\"\].*KeyError"
    ):
        Model.from_torch(Moody(), x, **with_loss)
