"""One class name means one thing: shipped classes whose names are used more than once.

A leading underscore is ignored. Classes inside functions do not count: nobody else can name them. A
private class may share its name with one of another room, whose module says what it is.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable

SHARED = {
    "Refused": "the message, and the error that users get of it",
    "Tick": "each state machine's own event: time has passed",
}


def room(path: str) -> str:
    """The folder below the package, or the package where it has none."""
    return "/".join(path.split("/")[:3])


def defined(source: str) -> list[str]:
    """Classes of a module and those inside them."""

    def below(node: ast.AST) -> Iterable[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield child.name
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from below(child)

    return list(below(ast.parse(source)))


def repeated(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """By name, the paths of modules that use it for classes of their own."""
    places: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for path, source in modules:
        for name in defined(source):
            places[name.lstrip("_")].append((path, name.startswith("_")))
    found = {}
    for name, uses in places.items():
        public = [path for path, private in uses if not private]
        rooms = [room(path) for path, _ in uses]
        if len(public) > 1 or len(rooms) > len(set(rooms)):
            found[name] = [path for path, _ in uses]
    return found
