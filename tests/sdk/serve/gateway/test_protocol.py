"""Requests that are spoiled in their structure: each is one, or is refused by a field."""

import copy
import json
import random

import pytest

from potluck.serve.gateway import protocol
from potluck.serve.gateway.protocol import (
    DTYPES,
    MAX_FIELDS,
    MAX_JSON_BYTES,
    MAX_LISTS,
    BadRequest,
    Infer,
)

np = pytest.importorskip("numpy")

ODD = [
    None, True, False, 0, -1, 1, 8, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**400, 10**4000,
    -(10**400), 0.5, 1e300, -1e308, 1e-320, "", "x", "NaN", "FP32", "\ud800", "\x00", "x" * 300,
    [], {}, [[]], [[[]]], [0] * 17, [0, *[2**31 - 1] * 15], [2**31 - 1] * 16, {"": []}, [None],
]  # fmt: skip
RAW = [b"NaN", b"1e999", b"-Infinity", b"[" * 3000, b"1" + b"0" * 5000, b"\xff", b'"\\ud800"', b""]


def request(rng):
    """One that holds, of any datatypes and shapes, and its bytes."""
    rows, raw = [], b""
    for number in range(rng.randrange(1, 4)):
        datatype = rng.choice(sorted(DTYPES))
        shape = [rng.randrange(4) for _ in range(rng.randrange(4))]
        values = np.zeros(shape, DTYPES[datatype])
        row = {"name": f"x{number}", "datatype": datatype, "shape": shape}
        if rng.random() < 0.5:
            numbers = np.zeros(shape) if datatype == "BF16" else values
            row["data"] = numbers.tolist() if shape else [numbers.item()]
        else:
            row["parameters"] = {"binary_data_size": values.nbytes}
            raw += values.tobytes()
        rows.append(row)
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    more = {"id": "1", "parameters": {"timeout": 5, "binary_data_output": True}}
    return {"inputs": rows, "outputs": outputs, **more}, raw


def places(value):
    """Everything within: the container and the key."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def spoil(document, rng):
    """Something within becomes odd, goes, is there twice, or changes places."""
    place, key = rng.choice(list(places(document)))
    other, other_key = rng.choice(list(places(document)))
    match rng.randrange(5):
        case 0 | 1:
            place[key] = copy.deepcopy(rng.choice(ODD))
        case 2:
            del place[key]
        case 3 if isinstance(place, list):
            place.append(json.loads(json.dumps(place[key])))
        case _:
            place[key] = json.loads(json.dumps(other[other_key]))


def is_read_or_refused(body, json_bytes):
    """Whether it was read."""
    try:
        found = protocol.read(body, json_bytes)
    except BadRequest as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.facts["field"]
        assert len(str(refused)) < 2_000
        return False
    assert isinstance(found, Infer)
    assert found.timeout_s is None or 0 < found.timeout_s <= 86_400
    for array in found.inputs.values():
        assert str(array.dtype) in DTYPES.values()
    return True


def check_spoiled(n_cases, seed):
    rng, n_read = random.Random(seed), 0
    for _ in range(n_cases):
        document, raw = request(rng)
        for _ in range(rng.randrange(4)):
            if list(places(document)):
                spoil(document, rng)
        header = json.dumps(document).encode()
        if rng.random() < 0.1:
            at = rng.randrange(len(header))
            header = header[:at] + rng.choice(RAW) + header[at + rng.randrange(3) :]
        raw = raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.1 else raw
        n_read += is_read_or_refused(header + raw, len(header) if raw else None)
    assert 0.2 * n_cases < n_read < 0.9 * n_cases


@pytest.mark.long
def test_a_spoiled_request_is_read_or_refused_by_its_field(record_property):
    record_property("inputs", 4_000)
    check_spoiled(4_000, 0)


@pytest.mark.long
def test_more_spoiled_requests():
    check_spoiled(200_000, 1)


@pytest.mark.parametrize(
    "inside",
    [
        b"[]," * (MAX_LISTS + 1),
        b"{}," * (MAX_LISTS + 1),
        b"[" * (MAX_LISTS + 1),
        (b"[" * 400 + b"0" + b"]" * 400 + b",") * (MAX_LISTS // 400 + 1),
        b",".join(b'{"%07d":0}' % n for n in range(MAX_FIELDS + 1)) + b",",
        b"0," * (MAX_JSON_BYTES // 2),
        b" " * MAX_JSON_BYTES,
    ],
    ids=["lists", "objects", "deep", "nested", "fields", "numbers", "blanks"],
)
def test_json_that_takes_long_or_much_is_refused_before_it_is_read(monkeypatch, inside):
    def read(*_, **__):
        raise AssertionError("it was read")

    monkeypatch.setattr(protocol.json, "loads", read)
    with pytest.raises(BadRequest, match="are taken") as error:
        protocol.read(b'{"inputs":[' + inside + b"0]}", None)
    assert error.value.facts["field"] == "body"


def test_large_tensors_come_as_bytes():
    values = np.arange(MAX_JSON_BYTES // 2, dtype=np.float32)
    row = {"name": "x", "datatype": "FP32", "shape": [values.size]}
    row["parameters"] = {"binary_data_size": values.nbytes}
    header = json.dumps({"inputs": [row]}).encode()
    found = protocol.read(header + values.tobytes(), len(header))
    assert np.array_equal(found.inputs["x"], values)


def test_as_many_dimensions_as_a_tensor_may_have_are_read_nested_and_no_more():
    nested = [0.5]
    for _ in range(15):
        nested = [nested]
    row = {"name": "x", "datatype": "FP32", "shape": [1] * 16, "data": nested}
    (array,) = protocol.read(json.dumps({"inputs": [row]}).encode(), None).inputs.values()
    assert array.shape == (1,) * 16
    row["data"] = [[nested]]
    with pytest.raises(BadRequest, match="deep"):
        protocol.read(json.dumps({"inputs": [row]}).encode(), None)


@pytest.mark.parametrize("shape", [(6,), (2, 3), ()])
def test_bfloat16_is_torchs_in_json_and_in_bytes(shape):
    torch = pytest.importorskip("torch")
    numbers = torch.randn(shape).mul(1e3)
    expected = numbers.to(torch.bfloat16)
    row = {"name": "x", "datatype": "BF16", "shape": [*shape]}
    data = numbers.reshape(-1).tolist()
    raw = expected.view(torch.int16).numpy().tobytes()
    told = json.dumps({"inputs": [{**row, "data": data}]}).encode()
    size = {"parameters": {"binary_data_size": len(raw)}}
    header = json.dumps({"inputs": [{**row, **size}]}).encode()
    for request in (protocol.read(told, None), protocol.read(header + raw, len(header))):
        assert request.inputs["x"].shape == shape
        assert request.inputs["x"].tobytes() == raw
        answer, json_bytes = protocol.write("m", request, {"x": request.inputs["x"]})
        (output,) = json.loads(answer)["outputs"]
        assert json_bytes is None
        assert output["datatype"] == "BF16"
        assert output["data"] == expected.reshape(-1).tolist()
        answer, json_bytes = protocol.write("m", Infer(inputs={}, binary=True), request.inputs)
        assert answer[json_bytes:] == raw


@pytest.mark.parametrize("value", [3.4e38, 1e300, -3.4e38])
def test_what_bfloat16_cannot_hold_is_refused(value):
    row = {"name": "x", "datatype": "BF16", "shape": [1], "data": [value]}
    with pytest.raises(BadRequest, match=r"inputs\[0\].data: a number is too large for BF16"):
        protocol.read(json.dumps({"inputs": [row]}).encode(), None)
