"""Batches on disk come back as they were, and what recurs is there once."""

import random

import pytest

from potluck.coordinator.batch_store import SHARD_BYTES, BatchStore, write_batches
from potluck.errors import FileError
from potluck.tensor_file import read_tensors, write_tensors

torch = pytest.importorskip("torch")


def same(one, other):
    return len(one) == len(other) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def drawn(seed, n=40):
    """Batches of any number of rows, lengths and types."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(30, 3, generator=generator)
    for number in range(n):
        rows = torch.randint(0, 30, (number % 5 + 1,), generator=generator)
        length = number % 3 + 1
        yield (
            data[rows],
            torch.arange(length).expand(len(rows), length) + rows[:, None],
            data[rows, 0] > 0,
            data[rows].to(torch.bfloat16),
        )


@pytest.mark.parametrize("seed", range(3))
def test_every_batch_comes_back_as_it_was(tmp_path, seed):
    assert write_batches(tmp_path, drawn(seed)) == 40
    store = BatchStore(tmp_path)
    assert all(same(store.batch(i), batch) for i, batch in enumerate(drawn(seed)))
    rest = store.since(33)
    assert len(rest) == 7
    for _ in range(2):
        assert all(map(same, rest, list(drawn(seed))[33:]))


def test_what_counts_for_a_whole_batch_is_there_once_for_each(tmp_path):
    x = torch.randn(6, 4)
    batches = [(x[:n], torch.tensor(0.5 / n).expand(n), torch.ones(2).expand(n, 2)) for n in (6, 5)]
    write_batches(tmp_path, batches, n_whole=2)
    store = BatchStore(tmp_path)
    assert all(same(store.batch(i), batch) for i, batch in enumerate(batches))


def test_rows_that_come_again_take_no_more_room(tmp_path):
    x, y = torch.randn(64, 256), torch.randint(0, 9, (64,))

    def epochs(n):
        for _ in range(n):
            order = torch.randperm(64)
            yield from ((x[part], y[part]) for part in order.split(16))

    nbytes = []
    for n in (1, 20):
        folder = tmp_path / str(n)
        folder.mkdir()
        assert write_batches(folder, epochs(n)) == 4 * n
        nbytes.append(sum(path.stat().st_size for path in folder.iterdir()))
    assert nbytes[1] < nbytes[0] + 20 * 64 * 16


@pytest.mark.long
def test_much_data_is_in_several_files(tmp_path):
    wide = SHARD_BYTES // 4 // 3
    rows = [torch.full((1, wide), float(i)) for i in range(7)]
    write_batches(tmp_path, [(row,) for row in rows])
    assert len(list(tmp_path.glob("rows-*"))) == 2
    store = BatchStore(tmp_path)
    assert all(torch.equal(store.batch(i)[0], row) for i, row in enumerate(rows))


def test_no_batch_is_no_batch(tmp_path):
    assert write_batches(tmp_path, []) == 0
    assert len(BatchStore(tmp_path)) == 0


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(FileError, match=r"order\.safetensors"):
        BatchStore(tmp_path)
    write_batches(tmp_path, drawn(0))
    (tmp_path / "rows-00000.safetensors").unlink()
    with pytest.raises(FileError, match=r"rows-00000\.safetensors"):
        BatchStore(tmp_path).batch(0)


def spoiled(tensors, rng):
    """One of them is otherwise than it was written, in some way."""
    name = rng.choice([*tensors])
    tensor = tensors[name].clone()
    at = rng.randrange(max(1, tensor.numel()))
    match rng.randrange(9):
        case 0:
            tensor.reshape(-1)[at] = rng.choice([-1, 2**40, 10**6, -(2**62)])
        case 1:
            tensor.reshape(-1)[at] += rng.choice([-1, 1, 7])
        case 2:
            tensor = tensor.to(rng.choice([torch.float32, torch.int32, torch.bool]))
        case 3:
            tensor = tensor[: len(tensor) // 2]
        case 4:
            tensor = tensor.reshape(-1, 1)
        case 5:
            tensor = tensor.sum()
        case 6:
            return {key: value for key, value in tensors.items() if key != name}
        case 7:
            return {**tensors, rng.choice(["whole-1", "whole-x", "x"]): tensor}
        case 8:
            tensor = tensor.flip(0)
    return {**tensors, name: tensor}


N_SPOILED = 750


@pytest.mark.long
def test_an_order_that_does_not_hold_is_refused_before_anybody_trains(tmp_path, record_property):
    record_property("inputs", N_SPOILED)
    rng = random.Random(0)
    batches = [(*batch, torch.ones(2).expand(len(batch[0]), 2)) for batch in drawn(0, 12)]
    write_batches(tmp_path, batches, n_whole=1)
    order = tmp_path / "order.safetensors"
    tensors, metadata = read_tensors(order, "")
    metadata.pop("sha256")
    n_refused = 0
    for _ in range(N_SPOILED):
        write_tensors(order, spoiled(tensors, rng), metadata)
        try:
            store = BatchStore(tmp_path)
            store.check()
        except FileError:
            n_refused += 1
        else:  # then every batch is one
            assert all(len({len(part) for part in batch}) == 1 for batch in store.since(0))
    assert N_SPOILED / 3 < n_refused < N_SPOILED


def changed(folder, change):
    """The order of batches, otherwise."""
    tensors, _ = read_tensors(folder / "order.safetensors", "")
    change(tensors)
    write_tensors(folder / "order.safetensors", tensors, {"format": "potluck-batches-1"})


def is_sound(folder, number):
    """Whether a batch can be read, by reading it."""
    try:
        BatchStore(folder).batch(number)
    except (FileError, RuntimeError, IndexError, ValueError):
        return False
    return True


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(20))
def test_the_first_batch_that_cannot_be_read_is_named_and_no_other(tmp_path, seed):
    """Places and rows at random: who reads all batches, one by one, finds the same."""
    draw = random.Random(seed)
    write_batches(tmp_path, drawn(seed))
    BatchStore(tmp_path).check()

    def change(tensors):
        n_places = len(tensors["places"])
        for _ in range(draw.randrange(3)):
            tensors["places"][draw.randrange(n_places), draw.randrange(2)] = draw.randrange(9)
        for _ in range(draw.randrange(3)):
            tensors["rows"][draw.randrange(len(tensors["rows"]))] = draw.randrange(n_places)

    changed(tmp_path, change)
    odd = [i for i in range(40) if not is_sound(tmp_path, i)]
    if not odd:
        BatchStore(tmp_path).check()
        return
    with pytest.raises(FileError, match=rf"batch {odd[0]} has rows|cannot read"):
        BatchStore(tmp_path).check()


def test_a_batch_that_no_memory_holds_is_refused_before_it_is_made(tmp_path):
    """Few bytes on disk: one wide row, again and again."""
    write_batches(tmp_path, [(torch.zeros(1, 1 << 20),)] * 2)
    n_rows = 1 << 20  # of 4 MiB each

    def change(tensors):
        tensors["rows"] = torch.zeros(n_rows, dtype=torch.int64)
        tensors["ends"] = torch.tensor([1, n_rows])

    changed(tmp_path, change)
    with pytest.raises(FileError, match=r"batch 1 has 4\.0+ TiB, and .* of memory are free"):
        BatchStore(tmp_path).check()


def test_shards_that_say_too_much_of_their_tensors_are_not_read(tmp_path, monkeypatch):
    write_batches(tmp_path, [(torch.zeros(2, 3),), (torch.zeros(2, 4),)])
    monkeypatch.setattr("potluck.coordinator.batch_store.MAX_HEADER_BYTES", 200)
    with pytest.raises(FileError, match="says more of its tensors than it may"):
        BatchStore(tmp_path).check()
