"""The rules of the code's structure as functions: path and source of a module in, broken rules out.

Exceptions carry reasons.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PURE = (
    "device_agent/potluck_wire/", "sdk/potluck/planning/", "sdk/potluck/schedule/",
    "sdk/potluck/simulate/", "sdk/potluck/contention/", "sdk/potluck/offload/plan/",
    "sdk/potluck/serve/scheduling/", "sdk/potluck/serve/simulate/", "sdk/potluck/serve/baselines/",
)  # fmt: skip
PURE_FILES = ("sdk/potluck/records.py", "sdk/potluck/errors.py")
IMPURE_FILES = {
    "device_agent/potluck_wire/descriptors.py": "raises a limit of its process: both sides listen",
    "device_agent/potluck_wire/durable_rename.py": "renames a file of either side for good",
    "device_agent/potluck_wire/file_lock.py": "locks a file: both sides keep keys in files",
    "device_agent/potluck_wire/file_reading.py": "reads such files",
    "device_agent/potluck_wire/machine_identity.py": "asks the system which machine this is: both",
    "device_agent/potluck_wire/process_identity.py": "asks the system about a process: both sides",
    "sdk/potluck/planning/api.py": "reads and writes the files of plans, and keeps to a time",
    "sdk/potluck/planning/rare_collections.py": "Python looks for cycles less often meanwhile",
}

MAX_LINES = 500
MOST_AT_ONCE = 2  # names
LONG = {
    "sdk/potluck/offload/rows/row_rules.py": "one table: the rule of every operator",
    "device_agent/potluck_wire/messages.py": "one table: every message beside its neighbours",
    "sdk/potluck/records.py": "one vocabulary: the records that all six steps share",
}
PRINTS = {
    "sdk/potluck/cli.py": "the command line",
    "sdk/potluck/commands/": "commands print their results",
    "sdk/potluck/profile/catalog.py": "a command for maintainers: says what it wrote",
    "sdk/potluck/bench/raw_zeromq.py": "a process of its own, reports over its standard output",
    "sdk/potluck/lab/cross_traffic.py": "a process of its own, reports over its standard output",
    "sdk/docs/": "a command for maintainers: says what it wrote",
    "sdk/potluck/lab/relay.py": "a process of its own, reports over its standard output",
    "sdk/potluck/bench/torch_ranks.py": "a process of its own, reports over its standard output",
}
WALL_TIME = {
    "sdk/potluck/display/": "shows dates to people",
    "sdk/potluck/bench/": "dates a report",
    "device_agent/potluck_agent/keys.py": "notes when a peer was paired, for people",
    "sdk/potluck/discover/keyring.py": "notes when a device was paired, for people",
    "sdk/potluck/serve/gateway/traces.py": "spans are dated, beside those of other programs",
}

# Loading any of these can run code of whoever wrote the bytes (or, for the last, read and write
# files).
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "msgpack_numpy",
}
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
UNSAFE_ENDINGS = (
    "recv_pyobj",
    "send_pyobj",
    "torch.load",
    "export.load",
    "jit.load",
    "hub.load",
    "package.PackageImporter",
    "fx.GraphModule",
    "GraphModule",
    "symbolic_trace",
    "from_file",
    "load_inline",
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "os.system",
    "os.popen",
)
LAST_NAMES = {ending.rpartition(".")[2] for ending in UNSAFE_ENDINGS}
SAFE = {"safetensors.torch.load"}  # numbers and nothing else, for all its name
UNSAFE_KEYWORDS = {"allow_pickle", "shell", "weights_only"}

IMPURE_MODULES = {
    "asyncio",
    "ctypes",
    "datetime",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "matplotlib",
    "numpy",
    "onnx",
    "onnxruntime",
    "psutil",
    "scipy",
    "torch",
    "zeroconf",
    "zmq",
}


def modules() -> Iterator[tuple[str, str]]:
    """Path below the root and source of every module that is shipped."""
    for folder in ("sdk", "device_agent"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


_tree = functools.cache(ast.parse)


@functools.cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _excused(path: str, table: dict[str, str]) -> bool:
    return any(path == entry or (entry.endswith("/") and path.startswith(entry)) for entry in table)


def is_pure(path: str) -> bool:
    """Whether this module may do nothing but compute."""
    return (path.startswith(PURE) and path not in IMPURE_FILES) or path in PURE_FILES


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, also inside functions."""
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> what it stands for, by the imports."""
    names = {}
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """`a.b.c` with its first name resolved; empty where it is no chain of names."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, aliases)
        return f"{before}.{node.attr}" if before else f"?.{node.attr}"
    return ""


def unsafe(path: str, source: str) -> list[str]:
    """Whatever could run code that came as data."""
    tree = _tree(source)
    aliases, found = _aliases(tree), []
    for line, name in _imports(tree):
        if set(name.split(".")) & UNSAFE_MODULES or _ends(name):
            found.append(f"{path}:{line}: imports {name}")
    for node in _nodes(tree):
        is_like_one = isinstance(node, ast.Attribute) and node.attr in LAST_NAMES
        if is_like_one and _ends(_dotted(node, aliases)):
            found.append(f"{path}:{node.lineno}: uses {_dotted(node, aliases)}")
        if isinstance(node, ast.Name) and node.id in UNSAFE_NAMES:
            found.append(f"{path}:{node.lineno}: uses {node.id}")
        if isinstance(node, ast.keyword) and node.arg in UNSAFE_KEYWORDS:
            found.append(f"{path}:{node.value.lineno}: passes {node.arg}")
    return found


def _ends(dotted: str) -> bool:
    return dotted not in SAFE and any(
        dotted == ending or dotted.endswith(f".{ending}") for ending in UNSAFE_ENDINGS
    )


def pure(path: str, source: str) -> list[str]:
    """No sockets, files, clocks, threads, prints or global random state in the pure packages."""
    if not is_pure(path):
        return []
    tree = _tree(source)
    aliases, found = _aliases(tree), []
    for line, name in _imports(tree):
        if name.split(".")[0] in IMPURE_MODULES:
            found.append(f"{path}:{line}: imports {name}")
    for node in _nodes(tree):
        name = _dotted(node.func, aliases) if isinstance(node, ast.Call) else ""
        if name in ("open", "input", "print") or (
            name.startswith("random.") and name != "random.Random"
        ):
            found.append(f"{path}:{node.lineno}: calls {name}")
        if isinstance(node, ast.Global):
            found.append(f"{path}:{node.lineno}: changes a global")
    return found


def long(path: str, source: str) -> list[str]:
    """One file, one idea: past 500 lines it needs a reason.

    Docstrings may be as long as they need to be.
    """
    n_lines = source.count("\n") - _docstring_lines(_tree(source))
    return (
        [f"{path}: {n_lines} lines, at most {MAX_LINES}"]
        if n_lines > MAX_LINES and path not in LONG
        else []
    )


def _docstring_lines(tree: ast.AST) -> int:
    """Lines of docstrings beyond the first of each."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [
        node.body[0]
        for node in _nodes(tree)
        if isinstance(node, owners) and ast.get_docstring(node, clean=False)
    ]
    return sum((text.end_lineno or text.lineno) - text.lineno for text in texts)


def prints(path: str, source: str) -> list[str]:
    """Nothing prints unasked."""
    if _excused(path, PRINTS):
        return []
    tree = _tree(source)
    calls = [node for node in _nodes(tree) if isinstance(node, ast.Call)]
    names = [(node.lineno, _dotted(node.func, {})) for node in calls]
    return [
        f"{path}:{line}: prints"
        for line, name in names
        if name in ("print", "sys.stdout.write", "pprint")
    ]


def wall_time(path: str, source: str) -> list[str]:
    """Monotonic clocks only; wall time is for display."""
    if _excused(path, WALL_TIME):
        return []
    tree = _tree(source)
    aliases = _aliases(tree)
    found = []
    for node in _nodes(tree):
        if isinstance(node, ast.Call):
            name = _dotted(node.func, aliases)
            now = name.startswith("datetime.") and name.endswith((".now", ".utcnow", ".today"))
            if now or name in ("time.time", "time.time_ns"):
                found.append(f"{path}:{node.lineno}: calls {name}")
    return found


def bare(path: str, source: str) -> list[str]:
    """No bare except, no name that says nothing."""
    found = []
    for node in _nodes(_tree(source)):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{path}:{node.lineno}: bare except")
        if isinstance(node, ast.ClassDef) and node.name.endswith(
            ("Manager", "Handler", "Util", "Utils", "Helper")
        ):
            found.append(f"{path}:{node.lineno}: a class called {node.name}")
    return found


def crowded(path: str, source: str) -> list[str]:
    """At most two names are assigned at once, unless one value is taken apart."""
    return [
        f"{path}:{node.lineno}: assigns more than two names at once"
        for node in _nodes(_tree(source))
        if isinstance(node, ast.Assign) and (len(node.targets) > MOST_AT_ONCE or any(_listed(node)))
    ]


def _listed(assign: ast.Assign) -> Iterator[bool]:
    """Whether each target is a long list of names for a list of values."""
    for target in assign.targets:
        names = target.elts if isinstance(target, ast.Tuple) else []
        yield isinstance(assign.value, ast.Tuple) and len(names) > MOST_AT_ONCE


RULES = (unsafe, pure, long, prints, wall_time, bare, crowded)
EXCUSES = (LONG, PRINTS, WALL_TIME)
