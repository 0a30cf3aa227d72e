"""Recurrent layers over packed sequences: rows of a batch have lengths of their own."""

import copy
import threading

import pytest
from tests.sdk.run.conftest import make_plan, train_alone

import potluck

torch = pytest.importorskip("torch")
nn = torch.nn
pack, pad = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
ROWS, TIME = 12, 6
WIDTH = 4
EXACT = 1e-12
KINDS = {
    "LSTM": {},
    "LSTM both ways": {"num_layers": 2, "bidirectional": True},
    "LSTM projected": {"num_layers": 2, "bidirectional": True, "proj_size": 2, "bias": False},
    "GRU time first": {"num_layers": 2, "bidirectional": True, "batch_first": False},
    "RNN": {},
    "RNN of relu": {"nonlinearity": "relu", "bidirectional": True},
}


class Reader(nn.Module):
    """Classifies by all that a layer gives: its outputs, and its last states.

    `begun`: its first states are not 0.
    """

    def __init__(self, kind, begun):
        super().__init__()
        settings = {"batch_first": True, **KINDS[kind]}
        self.layer = getattr(nn, kind.split()[0])(WIDTH, 3, **settings)
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.LazyLinear(3)
        self.begun = begun

    def forward(self, x, lengths):
        x, first = self.embed(x), self.layer.batch_first
        packed = pack(x if first else x.transpose(0, 1), lengths, first, enforce_sorted=False)
        out, states = self.layer(packed, self.states(x) if self.begun else None)
        out, same = pad(out, batch_first=True, padding_value=0.5, total_length=TIME + 1)
        states = states if isinstance(states, tuple) else (states,)
        found = [out.flatten(1), *(state.transpose(0, 1).flatten(1) for state in states)]
        return self.head(torch.cat(found, 1) * same[:, None])

    def states(self, x):
        layer = self.layer
        n, h = layer.num_layers * (1 + layer.bidirectional), layer.hidden_size
        first = x[:, 0].mean(1).expand(n, layer.proj_size or h, -1).transpose(1, 2)
        return (
            (first, x[:, 0].amax(1).expand(n, h, -1).transpose(1, 2))
            if (layer.mode == "LSTM")
            else first
        )


def case(kind, begun):
    torch.manual_seed(0)
    net = Reader(kind, begun).double()
    x, lengths = torch.randn(ROWS, TIME, WIDTH).double(), torch.randint(1, TIME + 1, (ROWS,))
    net(x, lengths)
    return net, (x, lengths), torch.randint(0, 3, (ROWS,))


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "begun"), [(kind, i % 2) for i, kind in enumerate(KINDS)])
def test_they_learn_and_answer_as_on_one_machine(home, kind, begun):
    net, inputs, y = case(kind, begun)
    loss = nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, inputs, loss=loss, example_targets=y)
    each = [((device,), (4,)) for device in ("local-1", "local-2")]
    plan = make_plan(model, *each, micro_batch=4)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
    losses = run.fit((*inputs, y), epochs=2).wait().losses
    alone = copy.deepcopy(net)
    expected = train_alone(
        alone,
        inputs,
        y,
        batch=4,
        micro_batch=4,
        epochs=2,
        make_optimizer=lambda ps: torch.optim.SGD(ps, 0.1),
    )
    assert losses == pytest.approx(expected, rel=EXACT)
    run.load_into(net)
    run.close()
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], tensor, rtol=EXACT, atol=EXACT)
    model = potluck.Model.from_torch(net, inputs)
    run = home.deploy(make_plan(model, *each, micro_batch=4, training=False), model).wait()
    x, lengths = inputs
    x[torch.arange(TIME) >= lengths[:, None]] = torch.nan  # what is in the padding does not count
    torch.testing.assert_close(run(x, lengths), alone(x, lengths), rtol=EXACT, atol=EXACT)
    run.close()


def test_other_threads_pack_as_always_while_a_model_is_made():
    net, (x, lengths), _ = case("LSTM", begun=False)
    packed_elsewhere = []

    class Watched(Reader):
        def forward(self, x, lengths):
            def elsewhere():
                packed = pack(plain, lengths_there, batch_first=True, enforce_sorted=False)
                packed_elsewhere.append(pad(packed, batch_first=True)[0])

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            return super().forward(x, lengths)

    plain, lengths_there = x.clone(), lengths.clone()
    net.__class__ = Watched
    potluck.Model.from_torch(net, (x, lengths))
    expected = pad(pack(x, lengths, batch_first=True, enforce_sorted=False), batch_first=True)[0]
    assert packed_elsewhere
    assert all(torch.equal(each, expected) for each in packed_elsewhere)
