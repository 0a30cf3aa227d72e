"""What a test reaches into that is private to the code it tests: path and source of a test in, the
places out.

A test that needs a private attribute is tied to how something is done. It proves the same through
what is public, or the code offers a seam: a count of what is held, a function of its own, an entry
of `potluck.testing`.
"""

import ast
from collections.abc import Iterator

OURS = ("potluck", "potluck_agent", "potluck_wire", "tests")
BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "patch"}  # take an attribute as a string
OWN = {"self", "cls"}
# what Python or a notebook calls by such a name: a protocol, and public
PROTOCOLS = {"_repr_html_", "_ipython_display_", "_asdict", "_replace", "_fields"}

# path -> name -> why there is no seam for it
ALLOWED: dict[str, dict[str, str]] = {}


def reaches(path: str, source: str) -> list[str]:
    """Places, as `path:line: name`, where this test names what is private to something else."""
    tree = ast.parse(source)
    allowed, libraries = ALLOWED.get(path, {}), _libraries(tree)
    found = {
        (line, name)
        for node in ast.walk(tree)
        for line, name in _private_names(node, libraries)
        if name not in allowed
    }
    return [f"{path}:{line}: {name}" for line, name in sorted(found)]


def _is_private(name: str) -> bool:
    is_dunder = name.startswith("__") and name.endswith("__")
    return (
        name.startswith("_") and name.strip("_") != "" and not is_dunder and name not in PROTOCOLS
    )


def _private_names(node: ast.AST, libraries: set[str]) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Attribute(value=ast.Name(id=owner)) if owner in OWN:
            return
        case ast.Attribute(attr="__new__", value=ast.Name(id=owner)):  # a body without its start
            yield node.lineno, f"{owner}.__new__"
        case ast.Attribute() if _root(node) not in libraries and _is_private(node.attr):
            yield node.lineno, node.attr
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in OURS:
            names = [*module.split("."), *[alias.name for alias in node.names]]
            yield from ((node.lineno, name) for name in names if _is_private(name))
        case ast.Call() if _called(node) in BY_NAME:
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            names = [name for text in texts if isinstance(text, str) for name in text.split(".")]
            yield from ((node.lineno, name) for name in names if _is_private(name))


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with; empty where it begins with no name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _libraries(tree: ast.AST) -> set[str]:
    """Names of imported modules that are not ours: no seam of theirs is ours to offer."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] not in OURS
    }
