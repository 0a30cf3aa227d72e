"""In which order each device acts, and the programs that make it so. Pure."""

from potluck.schedule.compiled import Compiled, Feed, Note, Result
from potluck.schedule.programs import compile_inference, compile_training
from potluck.schedule.weights import State, compile_move, compile_pull, compile_push

__all__ = [
    "Compiled",
    "Feed",
    "Note",
    "Result",
    "State",
    "compile_inference",
    "compile_move",
    "compile_pull",
    "compile_push",
    "compile_training",
]
