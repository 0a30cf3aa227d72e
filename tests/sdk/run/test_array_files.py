"""Arrays in files are read as they were saved, in an order that the seed alone tells; a file that
is none, or is outside of the folder, is refused in words and runs nothing.
"""

import json
import os
import random
import struct
import sys
import zipfile

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import FileError, UserError
from potluck.run.array_file import WHOLE_BYTES, fingerprint, open_array
from potluck.run.array_files import Order
from potluck.run.checkpoint import load, step_of

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
save_file = pytest.importorskip("safetensors.torch").save_file
N_SPOILED = 600
STAGES = ((("local-1",), (4,)), (("local-2",), (4,)))


def saved(folder, array, name="x.npy"):
    """The same array in each kind of file."""
    numpy.save(folder / "x.npy", array)
    numpy.savez(folder / "one.npz", x=array)
    numpy.savez_compressed(folder / "two.npz", x=array, y=array[:1])
    plain = numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))
    save_file({"x": torch.from_numpy(plain), "y": torch.ones(2)}, folder / "t.safetensors")
    return ["x.npy", "one.npz", "two.npz:x", "t.safetensors:x"]


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "<i2", ">i4", "int64", "float16", ">f4", "float64"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_come_as_they_were_saved(tmp_path, dtype, order):
    array = numpy.random.default_rng(0).integers(0, 100, (7, 3, 2)).astype(dtype, order=order)
    native = array.astype(array.dtype.newbyteorder("="))
    for name in saved(tmp_path, array):
        found = open_array(tmp_path, name)
        assert (found.shape, found.dtype) == ((7, 3, 2), native.dtype.name)
        for rows in ([4, 0, 4], range(2, 5), numpy.array([6])):
            assert torch.equal(found.take(rows), torch.from_numpy(native[list(rows)]))


@pytest.mark.parametrize(("n_rows", "batch"), [(10, 4), (12, 4), (3, 7), (1, 1)])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_epoch_has_each_row_once(n_rows, batch, drop_last, shuffle):
    options = {"n_rows": n_rows, "batch": batch, "shuffle": shuffle, "drop_last": drop_last}
    if drop_last and batch > n_rows:
        with pytest.raises(ValueError, match="make no batch"):
            Order(**options)
        return
    order = Order(seed=3, **options)
    epochs = []
    for number in range(3):
        rows = order.epoch(number)
        taken = [[*order.rows(rows, i)] for i in range(order.n_batches)]
        epochs.append([int(row) for part in taken for row in part])
        assert all(len(part) == batch for part in taken[:-1])
        assert len(set(epochs[-1])) == len(epochs[-1]) == (n_rows // batch * batch or n_rows) or (
            not drop_last and sorted(epochs[-1]) == [*range(n_rows)]
        )
    if shuffle and n_rows > 9:
        assert epochs[0] != epochs[1] != epochs[2]


def test_an_order_is_the_same_on_every_machine_and_of_every_version():
    order = Order(n_rows=8, batch=2, shuffle=True, seed=5)
    assert order.epoch(1).tolist() == [7, 6, 1, 5, 4, 2, 0, 3]


def test_batches_are_given_by_name_or_by_place_epoch_after_epoch(tmp_path):
    x, y = numpy.arange(20.0).reshape(10, 2), numpy.arange(10)
    numpy.savez(tmp_path / "all.npz", x=x, y=y)
    options = {"batch": 4, "shuffle": True, "seed": 1}
    files = potluck.ArrayFiles(tmp_path, ["all.npz:x", "all.npz:y"], **options)
    named = potluck.ArrayFiles(tmp_path, {"a": "all.npz:x", "b": "all.npz:y"}, **options)
    assert len(files) == 3
    assert "10 rows, shuffled by seed 1" in repr(files)
    epochs = [[*files] for _ in range(2)]
    for batches, others in zip(epochs, ([*named], [*named]), strict=True):
        for (a, b), other in zip(batches, others, strict=True):
            assert torch.equal(a[:, 0], b * 2)
            assert torch.equal(other["a"], a)
            assert torch.equal(other["b"], b)
    again = potluck.ArrayFiles(tmp_path, ["all.npz:x", "all.npz:y"], **options)
    again.load_state_dict({**again.state_dict(), "n_batches": 4})
    assert [b.tolist() for _, b in again] == [b.tolist() for _, b in epochs[1][1:]]
    with pytest.raises(UserError, match="data of another kind"):
        again.load_state_dict({"n_batches": -1})


@pytest.mark.long
def test_a_run_learns_what_it_learns_of_a_loader_and_goes_on_from_a_file(home, tmp_path):
    _, model = make_model("mlp")
    x, y = make_data("mlp", 40)
    numpy.savez(tmp_path / "all.npz", x=x.numpy(), y=y.numpy())
    plan = make_plan(model, *STAGES, micro_batch=4, n_micro_batches=2)

    def files():
        names = ["all.npz:x", "all.npz:y"]
        return potluck.ArrayFiles(tmp_path, names, batch=8, shuffle=True, seed=2)

    order = files().batches.order
    rows = [order.rows(order.epoch(e), i) for e in range(3) for i in range(5)]
    batches = [(x[part], y[part]) for part in map(numpy.array, rows)]

    def deployed(**options):
        return home.deploy(plan, model, optimizer=potluck.AdamW(1e-2), **options).wait()

    run = deployed()
    losses = run.fit(batches).wait().losses
    run.close()
    run = deployed()
    assert run.fit(files(), epochs=3).wait().losses == losses
    run.close()
    run = deployed()
    losses_so_far = []

    def until_seven(step, loss):
        losses_so_far.append(loss)
        if step == 7:
            raise potluck.StopTraining

    run.fit(files(), epochs=3, on_step=until_seven).wait()
    run.save(tmp_path / "state")
    run.close()
    again = deployed(resume=tmp_path / "state")
    assert (*losses_so_far, *again.fit(files(), epochs=3, resume=True).wait().losses) == losses


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"batch": 4}, "batch=8 .* here it is 4"),
        ({"seed": 3}, "seed=2 .* here it is 3"),
        ({"shuffle": False}, "shuffle=True .* here it is False"),
        ({"drop_last": True}, "drop_last=False .* here it is True"),
        ({"rows": 24}, "n_rows=40 .* here it is 24"),
    ],
)
def test_who_goes_on_goes_on_in_the_same_order(tmp_path, other, named):
    def files(rows=40, **how):
        numpy.save(tmp_path / f"x{rows}.npy", numpy.arange(rows))
        how = {"batch": 8, "shuffle": True, "seed": 2, **how}
        return potluck.ArrayFiles(tmp_path, [f"x{rows}.npy"], **how)

    begun = files()
    next(iter(begun))
    files().load_state_dict(begun.state_dict())
    with pytest.raises(UserError, match=named):
        files(**other).load_state_dict(begun.state_dict())


# --- what is refused ------------------------------------------------------------------------------

OUTSIDE = [
    "../secret.npy",
    "a/../../secret.npy",
    "/etc/passwd",
    "a/./x.npy",
    "a//x.npy",
    "",
    ".",
    "..",
    "a\\..\\x.npy",
    "x.npy\0",
    "x" * 1000,
    "link.npy",
    "folder/secret.npy",
    "loop.npy",
    "pipe.npy",
    "a",
    "missing.npy",
    "x.npy/x.npy",
    "C:x.npy",
    "x.pkl",
]


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_nothing_outside_of_the_folder_is_read(tmp_path, name):
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    for path in (tmp_path / "secret.npy", folder / "x.npy", folder / "a" / "x.npy"):
        numpy.save(path, numpy.ones(3))
    (folder / "x.pkl").write_bytes(b"")
    (folder / "link.npy").symlink_to(tmp_path / "secret.npy")
    (folder / "folder").symlink_to(tmp_path)
    (folder / "loop.npy").symlink_to(folder / "loop.npy")
    os.mkfifo(folder / "pipe.npy")
    with pytest.raises(FileError):
        open_array(folder, name)
    (folder / "inner.npy").symlink_to(folder / "x.npy")
    assert open_array(folder, "inner.npy").shape == (3,)


def test_what_is_missing_is_named_with_its_folder_and_what_to_do(tmp_path):
    with pytest.raises(FileError) as caught:
        open_array(tmp_path, "digits/x.npy")
    assert "'digits/x.npy'" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert f"Put the file into {tmp_path}" in caught.value.next_step


class Harm:
    """What would be run if it were unpickled."""

    def __reduce__(self):
        return (os.mkdir, (Harm.path,))


def head(text, version=1):
    """That of a .npy which says this."""
    width = "<H" if version == 1 else "<I"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, len(text)) + text.encode()


def header(shape="(3,)", descr="'<f8'", order="False"):
    return head(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")


ODD_ARRAYS = {
    "nothing": b"",
    "no array": b"\x93NUMPZ" + bytes(100),
    "cut": header()[:-5],
    "an object": header(descr="'|O'") + bytes(24),
    "a record": header(descr="[('a', '<f8')]") + bytes(24),
    "text": header(descr="'<U2'") + bytes(24),
    "complex": header(descr="'<c16'") + bytes(48),
    "a date": header(descr="'<M8[s]'") + bytes(24),
    "too little": header() + bytes(23),
    "too much": header() + bytes(25),
    "no rows": header("(0, 3)"),
    "one number": header("()") + bytes(8),
    "rows below none": header("(-3,)") + bytes(24),
    "rows without end": header("(2305843009213693952,)") + bytes(24),
    "a true shape": header("(True, 3)") + bytes(24),
    "code": head("__import__('os').abort()\n"),
    "many brackets": head("(" * 5000 + "\n"),
    "a long head": head(" " * 60000),
    "another version": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
@pytest.mark.parametrize("content", ODD_ARRAYS.values(), ids=ODD_ARRAYS)
def test_what_is_no_array_of_numbers_is_refused(tmp_path, content, packed):
    name = "x.npz" if packed else "x.npy"
    if packed:
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("x.npy", content)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=name) as caught:
        open_array(tmp_path, name)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_what_was_pickled_is_not_run(tmp_path, suffix):
    Harm.path = str(tmp_path / "harm")
    objects = numpy.array([Harm()], dtype=object)
    (numpy.save if suffix == ".npy" else numpy.savez)(tmp_path / f"x{suffix}", objects)
    with pytest.raises(FileError, match="is of type object"):
        open_array(tmp_path, f"x{suffix}")
    assert not (tmp_path / "harm").exists()


def test_more_than_fits_in_memory_is_not_unpacked(tmp_path, monkeypatch):
    numpy.savez_compressed(tmp_path / "x.npz", x=numpy.zeros(1 << 20))
    room = type("Room", (), {"available": 1 << 20})
    monkeypatch.setattr("psutil.virtual_memory", lambda: room)
    with pytest.raises(FileError, match=r"8\.\d+ MiB, which are read whole, and 1\.0+ MiB"):
        open_array(tmp_path, "x.npz")


def test_which_array_has_to_be_said_where_there_are_several(tmp_path):
    saved(tmp_path, numpy.ones((4, 2)))
    for name, why in (
        ("two.npz", "has the arrays x, y, and it is not said which one"),
        ("two.npz:z", "and not 'z'"),
        ("t.safetensors", "has the arrays x, y"),
        ("x.npy:x", "has one array"),
    ):
        with pytest.raises(FileError, match=why):
            open_array(tmp_path, name)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["x.npy", "two.npz:x", "t.safetensors:x"])
def test_a_spoiled_file_is_refused_or_has_rows_that_can_be_read(tmp_path, name, record_property):
    record_property("inputs", N_SPOILED)
    rng = random.Random(name)
    saved(tmp_path, numpy.arange(24.0).reshape(6, 4))
    path = tmp_path / name.partition(":")[0]
    sound = path.read_bytes()
    n_refused = 0
    for _ in range(N_SPOILED):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 300))] = rng.randrange(256)
        path.write_bytes(data if rng.random() < 0.8 else data[: rng.randrange(len(data))])
        try:
            found = open_array(tmp_path, name)
        except FileError:
            n_refused += 1
        else:
            assert len(found.take([0, found.shape[0] - 1])) == 2
    assert n_refused > N_SPOILED / 10


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"batch": 0}, "make no batch"),
        ({"batch": 2.5}, "whole numbers"),
        ({"batch": True}, "whole numbers"),
        ({"batch": 2, "seed": -1}, "whole numbers"),
        ({"batch": 9, "drop_last": True}, "make no batch"),
    ],
)
def test_what_makes_no_batches_is_refused(tmp_path, options, why):
    numpy.save(tmp_path / "x.npy", numpy.ones((4, 2)))
    with pytest.raises(UserError, match=why):
        potluck.ArrayFiles(tmp_path, ["x.npy"], **options)


@pytest.mark.parametrize("arrays", ["x.npy", [], {}])
def test_arrays_are_named(tmp_path, arrays):
    numpy.save(tmp_path / "x.npy", numpy.ones((4, 2)))
    with pytest.raises(UserError, match="names of files"):
        potluck.ArrayFiles(tmp_path, arrays, batch=2)


def test_arrays_have_the_same_number_of_rows(tmp_path):
    numpy.savez(tmp_path / "all.npz", x=numpy.ones((4, 2)), y=numpy.ones(3))
    with pytest.raises(FileError, match=r"all\.npz:x 4, all\.npz:y 3"):
        potluck.ArrayFiles(tmp_path, ["all.npz:x", "all.npz:y"], batch=2)


def test_a_fingerprint_tells_files_apart(tmp_path):
    path = tmp_path / "x"
    seen = set()
    for content in (b"", b"a", b"b", bytes(2), bytes(3)):
        path.write_bytes(content)
        seen.add(fingerprint(path))
    assert len(seen) == 5
    nbytes = WHOLE_BYTES + 12345
    for at in (0, nbytes - 1, None):
        with path.open("wb") as file:
            file.truncate(nbytes)
            if at is not None:
                file.seek(at)
                file.write(b"x")
        seen.add(fingerprint(path))
    assert len(seen) == 8
    with pytest.raises(FileError, match="cannot read"):
        fingerprint(tmp_path)


def cut_short(path, array):
    os.truncate(path, path.stat().st_size // 2)


def saved_anew_in_place(path, array):
    with path.open("r+b") as file:
        file.seek(-array[0].nbytes, 2)
        file.write(bytes(array[0].nbytes))


def put_beside_and_renamed(path, array):
    (path.parent / "other").write_bytes(bytes(path.stat().st_size))
    os.replace(path.parent / "other", path)


@pytest.mark.skipif(sys.platform != "linux", reason="the file has holes")
def test_tensors_in_a_file_larger_than_memory_are_read_by_rows(tmp_path):
    """Torch maps no such file: opening it ended with its RuntimeError."""
    n_rows, width = 2**20, 2**17
    said = {"dtype": "F64", "shape": [n_rows, width], "data_offsets": [0, 2**40]}
    header = json.dumps({"x": said}).encode()
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**40)
        file.seek(-8, 2)
        file.write(numpy.array(7.0).tobytes())
    found = open_array(tmp_path, path.name)
    assert (found.shape, found.dtype) == ((n_rows, width), "float64")
    first, last = found.take([0, n_rows - 1])
    assert (first.sum(), last.sum(), last[-1]) == (0.0, 7.0, 7.0)
    with pytest.raises(FileError, match=r"cannot read|not a saved run"):
        load(path)
    with pytest.raises(FileError, match="is no state of a run"):
        step_of(path)


@pytest.mark.parametrize("what", [cut_short, saved_anew_in_place, put_beside_and_renamed])
@pytest.mark.parametrize("kind", ["npy", "npy by columns", "npz", "safetensors"])
def test_a_file_that_is_changed_while_it_is_read_gives_its_rows_or_an_error(tmp_path, kind, what):
    array = numpy.arange(1.0, 40961).reshape(4096, 10)
    path = tmp_path / f"x.{kind[:11].split()[0]}"
    if kind == "npz":
        numpy.savez(path, x=array)
    elif kind == "safetensors":
        save_file({"x": torch.from_numpy(array)}, path)
    else:
        numpy.save(path, numpy.asfortranarray(array) if "columns" in kind else array)
    files = iter(potluck.ArrayFiles(tmp_path, [path.name], batch=1024))
    (first,) = next(files)
    assert numpy.array_equal(first.numpy(), array[:1024])
    what(path, array)
    if what is put_beside_and_renamed or kind in ("npz", "npy by columns"):  # it is open, or read
        rest = numpy.concatenate([batch[0].numpy() for batch in files])
        assert numpy.array_equal(rest, array[1024:])
        return
    with pytest.raises(FileError, match="was changed while it was read"):
        list(files)
