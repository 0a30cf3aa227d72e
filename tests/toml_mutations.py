"""TOML files with something odd in them."""

import copy
import json
import math

ODD = (
    *(None, True, -1, 0, -0.0, 1e-300, 1e308, math.nan, math.inf, -math.inf),
    *(2**62, -(2**62), 10**400, "", " ", "x", "x" * 300, "\u202e\x07", "../../etc/passwd"),
    *([], [[]], [1], ["x", "x"], {}, {"x": 1}, [{}], [{"x": {}}]),
)


def toml_of(value):
    """A value as TOML has it in one line; a table of tables by keys and inline tables."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{'-' * (value < 0)}inf"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True)
    return repr(value)


def document_of(table):
    """A whole document."""
    return "\n".join(f"{json.dumps(key)} = {toml_of(value)}" for key, value in table.items())


def mutated(table, rng):
    """A copy of a document's table with one to three things odd, left out, doubled or exchanged."""
    table = copy.deepcopy(table)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [*_places(table)]
        holder, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del holder[key]
            case 1:
                other, name = rng.choice(places)
                holder[key] = copy.deepcopy(other[name])
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case 2:
                holder[rng.choice(("x", "note", "name", "value"))] = copy.deepcopy(rng.choice(ODD))
            case _:
                holder[key] = copy.deepcopy(rng.choice(ODD))
        _drop_none(table)
        if not table:
            break
    return table


def _places(value):
    pairs = enumerate(value) if isinstance(value, list) else value.items()
    for key, child in [*pairs]:
        yield value, key
        if isinstance(child, dict | list):
            yield from _places(child)


def _drop_none(value):
    """TOML knows none."""
    if isinstance(value, dict):
        for key in [key for key, child in value.items() if child is None]:
            del value[key]
        children = value.values()
    else:
        value[:] = [child for child in value if child is not None]
        children = value
    for child in children:
        if isinstance(child, dict | list):
            _drop_none(child)
