"""Attacks that are known from similar systems, A1 to A15: none of them finds anything to hold on to
here.
"""

import ast
import dataclasses
import io
import json
import pickle
import subprocess
import sys
import zipfile
from importlib.metadata import version

import msgpack
import pytest
from tests.security.sources import called, dotted, imported, trees
from tests.wire.samples import sample

from potluck_agent.cli.arguments import parser
from potluck_wire import limits, tensors
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.graph import DTYPE_BYTES, SegmentError
from potluck_wire.messages import MESSAGES, Channel
from potluck_wire.segment import loads
from potluck_wire.stream import StreamReader

torch = pytest.importorskip("torch")

MODULES = {
    "pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "msgpack_numpy",
    "jsonpickle",
    "yaml",
}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.jit.load",
    "torch.export.load",
    "np.load",
}
METHODS = ("recv_pyobj", "send_pyobj", "recv_serialized", "load_state_dict_from_url", "hub.load")


def test_a1_nothing_unpickles_or_evaluates():
    for path, tree in trees():
        found = {name.split(".")[0] for name in imported(tree)} & MODULES
        found |= {name for name in called(tree) if name in CALLS or name.endswith(METHODS)}
        assert not found, f"{path}: {found}"


class Payload:
    """What runs code where it is unpickled."""

    def __reduce__(self):
        return (sys.exit, ("unpickled",))


HOSTILE_BYTES = {
    "pickle": pickle.dumps(Payload()),
    "old pickle": pickle.dumps(Payload(), protocol=0),
    "object array": msgpack.packb({"nd": True, "kind": "O", "data": pickle.dumps(Payload())}),
    "zip": b"PK\x03\x04" + bytes(60),
    "elf": b"\x7fELF" + bytes(60),
}


@pytest.mark.parametrize("channel", Channel)
@pytest.mark.parametrize("data", HOSTILE_BYTES.values(), ids=HOSTILE_BYTES)
def test_a1_a_pickle_is_no_message_on_any_channel(channel, data):
    for frames in ([data], [data, data]):
        with pytest.raises(WireError):
            decode(frames, channel)
    with pytest.raises(WireError):
        list(StreamReader(channel).feed(b"\xff\xff\xff\xff" + data))


def test_a2_an_array_of_objects_has_no_type_here():
    for dtype in ("object", "O", "|O", "V8"):
        assert dtype not in DTYPE_BYTES
        with pytest.raises(WireError):
            tensors.nbytes(dtype, (1,))


def test_a3_msgpack_is_new_enough_and_no_unpacker_is_used_twice():
    assert tuple(int(part) for part in version("msgpack").split(".")[:3]) >= (1, 2, 1)
    for path, tree in trees():
        assert not any(name.endswith("Unpacker") for name in called(tree) | imported(tree)), path


def test_a4_torch_load_is_not_reached():
    for path, tree in trees():
        loaders = {
            "torch.load",
            "torch.jit.load",
            "torch.package.PackageImporter",
            "torch.hub.load",
        }
        assert not called(tree) & loaders, path


def archive(*names):
    """A file as `torch.export.save` makes it: a zip."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as zipped:
        for name in names:
            zipped.writestr(name, pickle.dumps(Payload()))
    return made.getvalue()


CHANNELS = {
    "constants": archive("archive/data/constants/x.pt"),
    "weights": archive("archive/data/weights/weight_0.pt"),
    "sample inputs": archive("archive/data/sample_inputs/model.pt"),
    "extra code": archive("archive/extra/code.py"),
    "model of a compiler": archive("archive/data/aotinductor/model/model.so"),
    "custom object": archive("archive/data/constants/custom_obj_0"),
    "record": archive("archive/models/model.json"),
    "legacy": archive("model/data.pkl"),
}


@pytest.mark.parametrize("data", CHANNELS.values(), ids=CHANNELS)
def test_a5_a_saved_program_is_refused_before_any_loader(data):
    with pytest.raises(SegmentError) as caught:
        loads(data)
    assert caught.value.cause == "document"


def test_a5_no_loader_of_programs_is_named():
    for path, tree in trees("potluck_agent", "potluck_wire"):
        names = called(tree) | imported(tree)
        assert not any(
            "export.load" in n or n.startswith("torch.fx") or "GraphModule" in n for n in names
        ), path


def test_a6_files_beside_an_onnx_model_are_refused_in_every_place():
    pytest.importorskip("onnx")
    from tests.sdk.graph.onnx.test_onnx_files import ANOTHER, ATTACKS

    from potluck_agent.worker.onnx.validator import validate

    external = {name for name, (_, why) in ATTACKS.items() if why == ANOTHER}
    assert len(external) >= 6
    for name in external:
        with pytest.raises(SegmentError, match=ANOTHER):
            validate(ATTACKS[name][0]().SerializeToString())


WITHOUT_A_FOLDER = """
import os, sys
os.chdir("/")
from potluck_agent.worker.onnx.validator import validate
from potluck_wire import limits, tensors
from potluck_wire.graph import DTYPE_BYTES, SegmentError
try:
    validate(bytes.fromhex(sys.stdin.read()))
except SegmentError as error:
    sys.exit("refused: " + error.text)
"""


def test_a7_a_model_in_memory_reads_no_file_of_the_folder_it_is_in():
    pytest.importorskip("onnx")
    from tests.sdk.graph.onnx.test_onnx_files import external, with_initializer

    text = with_initializer(external("w", "etc/passwd")).SerializeToString().hex()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_FOLDER], input=text, capture_output=True, text=True
    )
    assert "refused" in done.stderr
    assert "etc/passwd" not in done.stdout


NUMBERS = (
    -2,
    2**53 + 1,
    2**63,
    -(2**63),
    True,
    1.5,
    float("nan"),
    float("inf"),
    None,
    "1",
    b"1",
    [],
    {},
    [[1]],
)


@pytest.mark.parametrize("number", sorted(MESSAGES))
def test_a8_every_integer_of_every_message_is_checked(number):
    entry = MESSAGES[number]
    for field in dataclasses.fields(entry.type):
        if field.type is not int:
            continue
        for value in NUMBERS:
            header = msgpack.packb([number, {field.name: value}])
            with pytest.raises(WireError):
                decode([header, *[b""] * entry.buffers[0]], entry.channel)


def test_a8_an_unknown_word_is_refused_not_guessed():
    with pytest.raises(SegmentError):
        loads(json.dumps({"version": 1, "nodes": [], "kind": "x"}).encode())
    for number in (0, -1, 99, 2**31, 2**53):
        with pytest.raises(WireError):
            decode([msgpack.packb([number, {}])], Channel.CONTROL)


def test_a8_no_field_is_an_address():
    for path, tree in trees("potluck_wire"):
        assert "ctypes" not in imported(tree), path


def test_a9_every_verb_is_said_by_strangers():
    """The test of strangers goes through the table, so that a new verb is in it."""
    from tests.agent.test_agent_process import NETWORK

    network = (Channel.CONTROL, Channel.DATA, Channel.PULSE)
    assert {entry.type for entry in NETWORK} == {
        e.type for e in MESSAGES.values() if e.channel in network
    }


def options(root):
    """The options of a command and of all its commands."""
    for action in root._actions:
        yield from action.option_strings
        for inner in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
            yield from options(inner)


def test_a10_no_switch_takes_the_encryption_away():
    words = (
        "secure",
        "plain",
        "no-auth",
        "curve",
        "encrypt",
        "unsafe",
        "any",
        "all",
        "verify",
        "open",
    )
    found = set(options(parser()))
    assert "--trust" in found
    assert not [option for option in found if any(word in option for word in words)]
    for path, tree in trees("potluck_agent"):
        assert not any(name in ("zmq.NULL", "zmq.PLAIN") for name in attributes(tree)), path


def attributes(tree):
    return {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_a11_the_library_has_the_known_holes_mended():
    import zmq

    assert zmq.zmq_version_info() >= (4, 3, 5)
    assert zmq.has("curve")


def test_a12_multicast_is_read_by_a_library_with_the_known_holes_mended():
    assert tuple(int(part) for part in version("zeroconf").split(".")[:2]) >= (0, 150)


def test_a13_who_waits_at_the_door_takes_little():
    assert limits.HANDSHAKE_S <= 2.0
    assert limits.HIGH_WATER_MARK <= 64
    assert limits.MAX_FRAME_BYTES <= 8 << 20
    assert limits.MAX_PAIRING_BYTES <= 1024
    assert limits.MAX_HALF_OPEN <= 10


def test_a14_what_guards_is_used():
    """The lines are taken away one after the other in `test_mutations`.

    Here: each is there once.
    """
    from tests.security.test_mutations import MUTATIONS, text_of

    for mutation in MUTATIONS.values():
        assert text_of(mutation.file).count(mutation.line) == 1, mutation


HEADERS = {
    "longer than the file": (2**40).to_bytes(8, "little") + b"{}",
    "huge": (2**63).to_bytes(8, "little"),
    "no json": (4).to_bytes(8, "little") + b"abcd",
    "overlap": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
    b'"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
    "beyond": b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4294967296]}}',
    "too little": b'{"a":{"dtype":"F32","shape":[2000],"data_offsets":[0,8]}}',
    "unknown type": b'{"a":{"dtype":"OBJ","shape":[2],"data_offsets":[0,8]}}',
    "overflow": b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}',
    "pickle": pickle.dumps(Payload()),
    "nothing": b"",
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS)
def test_a15_a_file_of_weights_that_does_not_hold_is_named(data, tmp_path):
    from potluck.errors import FileError
    from potluck.run.checkpoint import load

    if data.startswith(b"{"):
        data = len(data).to_bytes(8, "little") + data + bytes(12)
    path = tmp_path / "run.safetensors"
    path.write_bytes(data)
    with pytest.raises(FileError, match=r"run\.safetensors"):
        load(path)


def test_a15_the_agent_reads_no_such_file():
    for path, tree in trees("potluck_agent", "potluck_wire"):
        assert not any(name.startswith("safetensors") for name in imported(tree)), path


def test_encoding_is_the_only_way_out():
    """What a message may hold is checked by its sender too."""
    value = MESSAGES[60]
    with pytest.raises(WireError):
        encode(dataclasses.replace(sample(value), seq=-1))
