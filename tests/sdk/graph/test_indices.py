"""Labels and tokens out of range are refused before anything is sent."""

import pytest

import potluck
from potluck.errors import ModelError
from potluck.graph.indices import IndexBound, index_bounds

torch = pytest.importorskip("torch")


def language_loss(logits, tokens):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens.reshape(-1), ignore_index=-1
    )


def classes_loss(logits, target):
    return torch.nn.functional.nll_loss(torch.log_softmax(logits, 1), target)


CLASSES = (torch.nn.Linear(4, 3), torch.zeros(2, 4), torch.tensor([0, 1]))
TOKENS = (
    torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 7)),
    torch.zeros(2, 5, dtype=torch.int64),
    torch.zeros(2, 5, dtype=torch.int64),
)
CASES = {
    "cross entropy": (CLASSES, torch.nn.CrossEntropyLoss(), (IndexBound(1, 3, -100),)),
    "negative log likelihood": (CLASSES, classes_loss, (IndexBound(1, 3, -100),)),
    "tokens": (TOKENS, language_loss, (IndexBound(0, 10), IndexBound(1, 7, -1))),
    "no indices": (CLASSES, lambda y, t: ((y.sum(1) - t) ** 2).mean(), ()),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_bounds_are_read_off_the_graph(case):
    (net, x, y), loss, bounds = CASES[case]
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    assert index_bounds(model.laid_out(True).line.traced) == bounds
    assert model.check_inputs(x, y, train=True) == 2


@pytest.mark.parametrize("wrong", [3, -1, 99])
def test_a_label_that_is_no_class_is_named(wrong):
    (net, x, y), loss, _ = CASES["cross entropy"]
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    with pytest.raises(ModelError, match=rf"target holds {wrong}; indices from 0 to 2") as caught:
        model.check_inputs(x, torch.tensor([0, wrong]), train=True)
    assert "nothing of it was sent" in str(caught.value)
    model.check_inputs(x, torch.tensor([0, -100]), train=True)  # ignored by the loss


def large(logits, tokens):
    wanted = torch.nn.functional.one_hot(tokens, logits.shape[-1])
    return ((logits - wanted) ** 2).mean()


@pytest.mark.parametrize("loss", [language_loss, large])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("shares", [(1, 1), (1, 3)])
def test_a_model_that_is_cut_takes_the_indices_of_the_whole_one(loss, frozen, shares):
    """Each device has a part of a table, where no index is out of range."""
    embedding = torch.nn.Embedding(16, 8).requires_grad_(not frozen)
    net = torch.nn.Sequential(embedding, torch.nn.Linear(8, 16))
    x, y = torch.randint(0, 16, (2, 5)), torch.full((2, 5), 15)
    whole = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    model = whole.divided(shares, tolerance_frac=1.0)
    for train in (False, True):
        targets = (y,) if train else ()
        assert model.check_inputs(x, *targets, train=train) == 2
        for wrong in (16, -1, 99):
            tokens = x.clone()
            tokens[0, 0] = wrong
            with pytest.raises(ModelError, match=f"holds {wrong}; indices from 0 to 15"):
                model.check_inputs(tokens, *targets, train=train)
