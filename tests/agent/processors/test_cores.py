"""The cores of a machine, from files as Linux has them, and the counts of threads to try."""

import pytest

from potluck_agent.processors.cores import Cores, candidates, cores, cpu_name, limit_of


def system(root, files):
    """A system with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def topology(siblings, file="core_cpus_list"):
    """Each processor with those of its core."""
    return {
        f"sys/devices/system/cpu/cpu{number}/topology/{file}": f"{text}\n"
        for number, text in enumerate(siblings)
    }


def strengths(*numbers):
    return {
        f"sys/devices/system/cpu/cpu{number}/cpu_capacity": f"{strength}\n"
        for number, strength in enumerate(numbers)
    }


FOUR = topology(["0", "1", "2", "3"])
HYPER = topology(["0-1", "0-1", "2-3", "2-3"])
# two cores with two threads each, four slower cores
HYBRID = topology(["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"])
TWO_OF_FOUR = {"sys/fs/cgroup/cpu.max": "150000 100000\n"}


@pytest.mark.parametrize(
    ("files", "usable", "expected"),
    [
        (FOUR, range(4), (4, 4, 4)),
        (HYPER, range(4), (4, 2, 2)),
        (topology(["0,2", "1,3", "0,2", "1,3"], "thread_siblings_list"), range(4), (4, 2, 2)),
        (HYPER, [0, 1], (2, 1, 1)),  # only one core of the two
        (HYPER, [1, 3], (2, 2, 2)),
        (HYBRID | {"sys/devices/cpu_core/cpus": "0-3\n"}, range(8), (8, 6, 2)),
        (HYBRID | {"sys/devices/cpu_core/cpus": "0-3\n"}, [4, 5], (2, 2, 2)),  # slower ones alone
        (HYBRID | {"sys/devices/cpu_core/cpus": "rubbish"}, range(8), (8, 6, 6)),
        (FOUR | strengths(446, 446, 1024, 1024), range(4), (4, 4, 2)),
        (FOUR | strengths(1010, 1024, 1024, 1024), range(4), (4, 4, 4)),  # one kind
        (FOUR | strengths(0, 0, 0, 0), range(4), (4, 4, 4)),
        (FOUR | TWO_OF_FOUR, range(4), (2, 2, 2)),
        (FOUR | {"sys/fs/cgroup/cpu.max": "max 100000\n"}, range(4), (4, 4, 4)),
        (FOUR | {"sys/fs/cgroup/cpu.max": "1000 100000\n"}, range(4), (1, 1, 1)),
        (FOUR | {"sys/fs/cgroup/cpu.max": "many\n"}, range(4), (4, 4, 4)),
    ],
)
def test_cores_are_counted_as_the_system_lists_them(tmp_path, files, usable, expected):
    found = cores(system(tmp_path, files), usable)
    assert (found.allowed, found.physical, found.performance) == expected


def test_this_machine_has_cores():
    found = cores()
    assert 1 <= found.performance <= found.physical <= found.allowed <= found.logical


@pytest.mark.parametrize(
    ("found", "limit", "expected"),
    [
        ((8, 4, 4), None, (1, 4, 8)),
        ((20, 14, 6), None, (1, 6, 14, 20)),
        ((8, 4, 4), 3, (1, 3)),
        ((8, 4, 4), 1, (1,)),
        ((8, 4, 4), 64, (1, 4, 8)),
        ((1, 1, 1), None, (1,)),
        ((512, 256, 256), None, (1, 256)),
    ],
)
def test_counts_to_try_end_at_what_is_allowed(found, limit, expected):
    allowed, physical, performance = found
    counts = Cores(logical=512, allowed=allowed, physical=physical, performance=performance)
    assert candidates(counts, limit) == expected


@pytest.mark.parametrize(
    ("text", "limit"),
    [("4", 4), (" 4 ", 4), ("4,2", 4), ("0", None), ("-1", None), ("", None), ("all", None)],
)
def test_the_limit_is_read_as_openmp_reads_it(text, limit):
    assert limit_of({"OMP_NUM_THREADS": text}) == limit
    assert limit_of({}) is None


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (
            {"proc/cpuinfo": "processor: 0\nmodel name\t: i5-1135G7 @ 2.4 GHz\n"},
            "i5-1135G7 @ 2.4 GHz",
        ),
        (
            {"proc/cpuinfo": "Features: fp\n", "proc/device-tree/model": "Raspberry Pi 4\0"},
            "Raspberry Pi 4",
        ),
    ],
)
def test_a_processor_has_the_name_that_its_system_gives(tmp_path, files, name):
    assert cpu_name(system(tmp_path, files)) == name


def test_a_processor_without_a_name_has_some_name(tmp_path):
    assert cpu_name(tmp_path)
