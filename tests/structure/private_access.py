"""What a test reaches into that is private to the code it tests: source of a test in, the places
out.

A test that needs a private attribute is tied to how something is done. It proves the same through
what is public, or the code offers a seam: a count of what is held, a function of its own, an entry
of `potluck.testing`.
"""

import ast
from collections.abc import Iterator

OURS = {"potluck", "potluck_agent", "potluck_wire", "tests"}
OWN = {"self", "cls"}
BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "patch"}  # take an attribute as a string
# by which Python and notebooks call an object
PROTOCOLS = {"_repr_html_", "_repr_png_", "_ipython_display_", "_asdict", "_replace", "_fields"}

# path -> name -> why there is no seam for it
_RULE = "a rule of the machine, replaced by a wrong one that the search has to find"
ALLOWED = {
    "tests/sdk/coordinator/test_succession.py": dict.fromkeys(("_take", "_write"), _RULE),
    "tests/agent/worker/test_interpreter.py": {
        "_schema": "of an operator of torch, which tells its arguments in no other way"
    },
    "tests/sdk/integrations/transformers_trainings.py": {
        "_prepare_inputs": "of transformers' Trainer, which is made for other ones to override"
    },
    "tests/security/test_attacks.py": {
        "_actions": "of a parser of argparse, which lists its options in no other way"
    },
}


def reaches(source: str) -> list[tuple[int, str]]:
    """Lines where this test names what is private to something else, and the names."""
    return sorted(set(_private(ast.parse(source))))


def _private(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and names, also of programs that stand in the source as text."""
    libraries = _libraries(tree)
    for node in ast.walk(tree):
        yield from ((line, name) for line, name in _named(node, libraries) if _is_private(name))
        if isinstance(node, ast.Constant) and (program := _program(node.value)) is not None:
            yield from ((node.lineno, name) for _, name in _private(program))


def _named(node: ast.AST, libraries: set[str]) -> Iterator[tuple[int, str]]:
    """Names of attributes that this node reaches for, but of what is its own or a library's."""
    match node:
        case ast.Attribute(attr="__new__", value=ast.Name(id=owner)):  # a body without its start
            yield node.lineno, f"_{owner}.__new__"
        case ast.Attribute(value=value, attr=name):
            is_own = isinstance(value, ast.Name) and value.id in OWN
            if not is_own and _root(value) not in libraries:
                yield node.lineno, name
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in OURS:
            names = [*module.split("."), *[alias.name for alias in node.names]]
            yield from ((node.lineno, name) for name in names)
        case ast.Call(args=args) if _called(node) in BY_NAME:
            texts = [each.value for each in args if isinstance(each, ast.Constant)]
            parts = [part for text in texts if isinstance(text, str) for part in text.split(".")]
            yield from ((node.lineno, part) for part in parts if part.isidentifier())


def _is_private(name: str) -> bool:
    is_special = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and name != "_" and not is_special and name not in PROTOCOLS


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
    """Names of what was imported and is not ours: no seam of it is ours to offer."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                theirs = [alias for alias in names if alias.name.partition(".")[0] not in OURS]
                found |= {(alias.asname or alias.name).partition(".")[0] for alias in theirs}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module.partition(".")[0] not in OURS:
                    found |= {alias.asname or alias.name for alias in names}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                if _called(call) == "importorskip":
                    found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value):
                if _root(value) in found:
                    found.add(name)
    return found


def _program(text: object) -> ast.AST | None:
    """A text as the program that it is, if it is one."""
    if not isinstance(text, str) or "import " not in text:
        return None
    try:
        return ast.parse(text)
    except SyntaxError:
        return None
