"""In which order each device acts, and the programs that make it so. Pure."""

from potluck.schedule.pipeline import compile_inference, compile_late_training, compile_training
from potluck.schedule.program_builder import Annotation, Compiled, InputBinding, ReceivedValue
from potluck.schedule.standby import (
    FOLLOW,
    Standby,
    compile_follow,
    followed_bytes,
    refined,
    standbys,
)
from potluck.schedule.weights import (
    NamedState,
    SegmentTarget,
    compile_move,
    compile_pull,
    compile_push,
    holding,
    targets,
)

__all__ = [
    "FOLLOW",
    "Compiled",
    "InputBinding",
    "Annotation",
    "ReceivedValue",
    "Standby",
    "NamedState",
    "SegmentTarget",
    "compile_follow",
    "compile_inference",
    "compile_late_training",
    "compile_move",
    "compile_pull",
    "compile_push",
    "compile_training",
    "followed_bytes",
    "holding",
    "refined",
    "standbys",
    "targets",
]
