"""Which tensor of a batch is which: matched by name in mappings of any kind and order.

Wrong names are refused.
"""

import itertools
from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.graph.test_equality import loaded

from potluck.errors import ModelError, UserError
from potluck.graph import Model
from potluck.graph.arguments import Arguments
from potluck.run.batches import as_tuple, batches, count

torch = pytest.importorskip("torch")
nn = torch.nn

BERT = Arguments(
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    targets=(("labels", "label", "target"),),
)
PAIR = Arguments(inputs=("x",), targets=(("boxes",), ("classes",)))
TENSORS = {
    name: torch.full((2,), float(i))
    for i, name in enumerate(("input_ids", "attention_mask", "token_type_ids"))
}
LABELS = torch.full((2,), 9.0)
WHOLE = (*TENSORS.values(), LABELS)
KINDS = (dict, OrderedDict, UserDict, MappingProxyType)


def same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@given(
    order=st.permutations(list(TENSORS)),
    kind=st.sampled_from(KINDS),
    label=st.sampled_from(BERT.targets[0]),
    place=st.integers(0, 3),
    shape=st.sampled_from(["one", "beside", "two", "nested", "deep"]),
)
def test_no_order_and_no_kind_of_a_mapping_decides_anything(order, kind, label, place, shape):
    named = [(name, TENSORS[name]) for name in order]
    if shape == "beside":  # (mapping, labels)
        batch = (kind(dict(named)), LABELS)
    elif shape == "two":
        batch = [kind(dict(named)), kind({label: LABELS})]
    elif shape == "nested":
        batch = kind(dict([*named[:place], (label, LABELS), ("more", kind(dict(named[place:])))]))
    elif shape == "deep":
        batch = ((kind({"text": {"tokens": kind(dict(named))}}), kind({})), (LABELS,))
    else:  # labels inside
        batch = kind(dict([*named[:place], (label, LABELS), *named[place:]]))
    assert same(as_tuple(batch, BERT), WHOLE)


@given(drop=st.sampled_from([*TENSORS, "labels"]), order=st.permutations([*TENSORS, "labels"]))
def test_what_is_missing_or_left_over_is_refused_by_its_name(drop, order):
    batch = {name: {**TENSORS, "labels": LABELS}[name] for name in order}
    with pytest.raises(
        UserError,
        match=f"holds position_ids, .*Inputs are {', '.join(TENSORS)}; targets are labels",
    ):
        as_tuple({**batch, "position_ids": LABELS}, BERT)
    del batch[drop]
    with pytest.raises(UserError, match=f"lacks {drop}"):
        as_tuple(batch, BERT)
    with pytest.raises(UserError, match=f"lacks {drop}"):
        as_tuple({**batch, drop: None}, BERT)


@pytest.mark.parametrize(
    ("batch", "arguments", "says"),
    [
        (
            {**TENSORS, "labels": LABELS},
            BERT.requested,
            "holds labels, which is none of the model's",
        ),
        (
            {**TENSORS, "labels": LABELS, "label": LABELS},
            BERT,
            "holds labels and label, which are the same",
        ),
        (({**TENSORS, "labels": LABELS}, LABELS), BERT, "holds more tensors than the model takes"),
        (
            ({**TENSORS, "labels": LABELS}, LABELS, LABELS),
            BERT,
            "holds more tensors than the model takes",
        ),
        ((TENSORS, TENSORS, LABELS), BERT, "holds input_ids twice"),
        ((LABELS, TENSORS, LABELS), BERT, "holds input_ids twice"),
        (
            ({"input_ids": LABELS, "token_type_ids": LABELS}, LABELS, LABELS),
            BERT,
            "more tensors|lacks attention_mask",
        ),
        ({"x": LABELS, "boxes": LABELS, "labels": LABELS}, PAIR, "holds labels"),
        ({"x": LABELS, "boxes": LABELS}, PAIR, "lacks classes"),
        (
            {**TENSORS, "labels": LABELS, "text": ["a", "b"]},
            BERT,
            "holds text, which is none of the model's",
        ),
        ({**TENSORS, "labels": ["a", "b"]}, BERT, "holds a list as labels, which is no tensor"),
        ({**TENSORS, 7: LABELS}, BERT, "holds 7, which is none"),
        (
            {"x": LABELS},
            Arguments(inputs=("",)),
            "names x, and the inputs of this model have no names",
        ),
        (("a",), BERT, "holds a str, which is no tensor"),
    ],
)
def test_what_is_not_clear_is_refused(batch, arguments, says):
    with pytest.raises(UserError, match=says):
        as_tuple(batch, arguments)


def test_without_names_a_batch_is_taken_as_it_comes():
    assert same(as_tuple(WHOLE, BERT), WHOLE)
    assert same(as_tuple(list(WHOLE[:2]), BERT), WHOLE[:2])
    assert same(as_tuple([WHOLE[:3], LABELS], BERT), WHOLE)
    assert same(as_tuple(LABELS, BERT), (LABELS,))
    assert same(
        as_tuple(
            (WHOLE[0], {"token_type_ids": WHOLE[2], "attention_mask": WHOLE[1]}, LABELS), BERT
        ),
        WHOLE,
    )
    assert same(as_tuple({"classes": WHOLE[2], "x": WHOLE[0], "boxes": WHOLE[1]}, PAIR), WHOLE[:3])


def test_a_named_tuple_goes_by_its_names_where_all_are_known_and_else_by_place():
    turned = namedtuple("turned", "labels token_type_ids attention_mask input_ids")(
        *reversed(WHOLE)
    )
    assert same(as_tuple(turned, BERT), WHOLE)
    assert same(as_tuple(namedtuple("other", "a b c d")(*WHOLE), BERT), WHOLE)
    in_place = namedtuple("in_place", "input_ids b c labels")
    assert same(as_tuple(in_place(*WHOLE), BERT), WHOLE)
    nested = namedtuple("nested", "inputs labels")
    assert same(as_tuple(nested(WHOLE[:3], LABELS), BERT), WHOLE)
    behind = namedtuple("behind", "token_type_ids d")
    assert same(as_tuple((*WHOLE[:2], behind(*WHOLE[2:])), BERT), WHOLE)


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        (namedtuple("turned", "attention_mask input_ids types classes")(*WHOLE), "attention_mask"),
        (namedtuple("targets_first", "labels a b c")(*WHOLE), "labels"),
        ((namedtuple("inner", "input_ids token_type_ids c")(*WHOLE[:3]), LABELS), "token_type_ids"),
        ((WHOLE[0], namedtuple("moved", "input_ids b c")(*WHOLE[1:])), "input_ids"),
        (namedtuple("more", "a b c d labels")(*WHOLE, LABELS), "labels"),
    ],
)
def test_a_field_in_the_place_of_another_is_refused(batch, field):
    with pytest.raises(UserError, match=f"whose field {field} comes as number"):
        as_tuple(batch, BERT)


@pytest.mark.parametrize(
    "data", [{**TENSORS, "labels": LABELS}, (TENSORS, LABELS), [TENSORS, LABELS], WHOLE]
)
def test_all_rows_at_once_may_be_named_too(data):
    assert count(data, 1, BERT) == 2
    assert [
        same(batch, [t[i : i + 1] for t in WHOLE]) for i, batch in enumerate(batches(data, 1, BERT))
    ] == [True] * 2


def test_a_list_of_mappings_is_a_list_of_batches():
    data = [{**TENSORS, "labels": LABELS}, (UserDict(TENSORS), LABELS)]
    assert count(data, 1, BERT) == 2
    assert all(same(batch, WHOLE) for batch in batches(data, 1, BERT))


# --- examples ---


class Three(nn.Module):
    """Each input counts otherwise, so that no two can be exchanged."""

    def forward(self, first, second, third):
        return first + 10 * second + 100 * third


class ByName(Three):
    def forward(self, first, *, second, third=None):
        return super().forward(first, second, third)


class ByPlace(Three):
    def forward(self, first, /, second, third):
        return super().forward(first, second, third)


class OnlyByPlace(nn.Module):
    def forward(self, first=None, second=None, /):
        return first


class Loose(Three):
    def forward(self, first, **others):
        return super().forward(first, others["second"], others["third"])


class Anything(Three):
    def forward(self, *inputs, **named):
        return super().forward(*inputs, **named)


X = {"first": torch.randn(3, 4), "second": torch.randn(3, 4), "third": torch.randn(3, 4)}
RIGHT = X["first"] + 10 * X["second"] + 100 * X["third"]


def answer(model, *given, **named):
    inputs = as_tuple((*given, named), model.arguments.requested)
    model.check_inputs(*inputs)
    return loaded(model.segment(0, len(model.layers()))[1], model.state()).forward(inputs)[0]


@pytest.mark.few(4)
@pytest.mark.parametrize("net", [Three, ByName, ByPlace, Loose, Anything])
@pytest.mark.parametrize("order", list(itertools.permutations(X)), ids=" ".join)
def test_an_example_and_a_request_by_name_are_what_the_module_makes_of_them(net, order):
    example = UserDict({name: X[name] for name in order})
    model = Model.from_torch(net(), example)
    for other in itertools.permutations(X):
        assert torch.allclose(answer(model, {name: X[name] for name in other}), RIGHT)
    assert torch.allclose(answer(model, **example), RIGHT)
    if net is not Anything:
        assert torch.allclose(
            answer(model, X["first"], third=X["third"], second=X["second"]), RIGHT
        )


def test_a_named_tuple_as_an_example_goes_by_its_names_as_batches_do():
    turned = namedtuple("turned", "third first second")(X["third"], X["first"], X["second"])
    model = Model.from_torch(Three(), turned)
    assert torch.allclose(answer(model, turned), RIGHT)
    model = Model.from_torch(Three(), namedtuple("other", "a b c")(*X.values()))
    assert torch.allclose(answer(model, tuple(X.values())), RIGHT)


def test_an_example_in_order_gives_names_too():
    model = Model.from_torch(Three(), tuple(X.values()))
    assert torch.allclose(answer(model, dict(reversed(X.items()))), RIGHT)
    with pytest.raises(UserError, match="inputs of this model have no names"):
        answer(Model.from_torch(Anything(), tuple(X.values())), X)


@pytest.mark.parametrize(
    ("net", "example", "says"),
    [
        (
            Three,
            {"first": X["first"], "third": X["third"]},
            "lacks second; forward takes first, second, third",
        ),
        (Three, {**X, "fourth": X["first"]}, "holds fourth; forward takes first, second, third"),
        (OnlyByPlace, {"second": X["second"]}, "lacks first; forward takes first, second"),
        (Loose, {**X, 7: X["first"]}, "holds 7"),
        (Three, {**X, "third": "c"}, "example input third is a str"),
        (Three, {**X, "third": X}, "example input third is a dict"),
        (ByName, (X["first"], X["second"]), "takes second by name alone.*mapping"),
        (Three, (X["first"], X), "example input 1 is a dict"),
    ],
)
def test_says_what_is_wrong_with_an_example(net, example, says):
    with pytest.raises(ModelError, match=says):
        Model.from_torch(net(), example)


def test_messages_about_a_batch_call_inputs_as_the_example_did():
    model = Model.from_torch(Three(), X)
    with pytest.raises(
        ModelError, match=r"second is float64 \[3, 4\]; float32 \[3 rows, 4\] is expected"
    ):
        model.check_inputs(X["first"], X["second"].double(), X["third"])


# --- targets ---


def weighted(output, wanted, weight):
    return ((output - wanted) ** 2 * weight).mean()


def trained(**more):
    return Model.from_torch(nn.Linear(4, 4), X["first"], **more).arguments.targets


def test_targets_are_called_as_in_their_example_or_as_by_the_loss_and_one_as_usual():
    x, y = X["first"], X["second"]
    assert trained(loss=nn.MSELoss(), example_targets=y)[0][:2] == ("target", "labels")
    assert trained(loss=nn.MSELoss(), example_targets={"price": y})[0][:3] == (
        "price",
        "target",
        "labels",
    )
    assert trained(loss=lambda out, t: ((out - t) ** 2).mean(), example_targets=[y])[0][0] == "t"
    assert trained(loss=weighted, example_targets=(y, x)) == (("wanted",), ("weight",))
    assert trained(loss=weighted, example_targets={"weight": x, "wanted": y}) == (
        ("wanted",),
        ("weight",),
    )
    for targets in ({"weight": x, "price": y}, {"weight": x}):
        with pytest.raises(ModelError, match="the loss takes wanted, weight"):
            trained(loss=weighted, example_targets=targets)


# --- lengths ---


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, a, b):
        return (a * b * self.scale).sum(1)


def test_lengths_that_change_are_named_where_the_example_has_no_order():
    class Two(nn.Module):
        def forward(self, tokens, picture):
            return tokens.cumsum(1), picture * 2

    example = {"picture": torch.randn(2, 5), "tokens": torch.randn(2, 7)}
    model = Model.from_torch(Two(), example, sequence_dims={"tokens": 1})
    assert model.check_inputs(torch.randn(3, 9), torch.randn(3, 5)) == 3
    with pytest.raises(ModelError, match="picture is"):
        model.check_inputs(torch.randn(3, 9), torch.randn(3, 6))
    even = {"b": torch.randn(2, 7), "a": torch.randn(2, 7)}
    model = Model.from_torch(
        Both(), even, sequence_dims=(1, 1), loss=nn.MSELoss(), example_targets=torch.randn(2)
    )
    assert model.check_inputs(torch.randn(3, 9), torch.randn(3, 9), torch.randn(3), train=True) == 3
    with pytest.raises(ModelError, match=r"has no order, and sequence_dims differ.*Name them"):
        Model.from_torch(Two(), example, sequence_dims=(None, 1))
    with pytest.raises(
        ModelError, match=r"names text, which is no input or target.*tokens, picture"
    ):
        Model.from_torch(Two(), example, sequence_dims={"text": 1})


def by_star(self, **kw):
    return self.linear(kw["z"]) - kw["a"]


def by_keyword(self, *, z, a):
    return self.linear(z) - a


def last_by_keyword(self, z, **kw):
    return self.linear(z) - kw["b"] * kw["a"]


@pytest.mark.parametrize("forward", [by_star, by_keyword, last_by_keyword])
def test_inputs_that_have_names_alone_are_not_taken_by_place(forward):
    module = type("ByName", (nn.Module,), {"forward": forward})()
    module.linear = nn.Linear(4, 4)
    names = ("z", "b", "a") if forward is last_by_keyword else ("z", "a")
    example = {name: torch.randn(3, 4) for name in names}
    arguments = Model.from_torch(module, example).arguments
    for batch in (
        tuple(example.values()),
        list(example.values()),
        tuple(reversed(example.values())),
    ):
        with pytest.raises(UserError, match=r"by name alone.*mapping"):
            as_tuple(batch, arguments)
    expected = tuple(example[name] for name in arguments.inputs)
    for order in itertools.permutations(example):
        assert same(as_tuple({name: example[name] for name in order}, arguments), expected)


class Masked(torch.nn.Linear):
    def forward(self, ids, mask):
        return super().forward(ids * mask)


@pytest.mark.parametrize(
    ("place", "odd", "name"),
    [
        (0, torch.ones(4, 2), "ids"),
        (1, torch.ones(4, 2), "mask"),
        (1, torch.ones(4, 3).double(), "mask"),
        (2, torch.ones(4, 2), "labels"),
        (3, torch.ones(4, 1), "weights"),
    ],
)
def test_what_does_not_fit_is_called_as_the_user_calls_it(place, odd, name):
    def loss(out, labels, weights):
        return ((out - labels) ** 2 * weights[:, None]).mean()

    given = [torch.ones(4, 3), torch.ones(4, 3), torch.ones(4, 3), torch.ones(4)]
    model = Model.from_torch(Masked(3, 3), tuple(given[:2]), loss=loss, example_targets=given[2:])
    with pytest.raises(ModelError, match=r"expected \(ids, mask, labels, weights\); got 3"):
        model.check_inputs(*given[:3], train=True)
    given[place] = odd
    with pytest.raises(ModelError, match=f"^{name} is float"):
        model.check_inputs(*given, train=True)


@pytest.mark.parametrize("dim", [2, 7, -3])
def test_a_sequence_in_a_dimension_that_is_not_there_is_refused(dim):
    with pytest.raises(ModelError, match=f"names dimension {dim} of a tensor that has 2"):
        Model.from_torch(Masked(3, 3), (torch.ones(4, 3),) * 2, sequence_dims={"mask": dim})
