"""A network becomes layers to plan with, and segments to send: `Model.from_torch`,
`Model.from_onnx`, `LanguageModel.from_transformers`.

Importing this loads no torch; making a model does.
"""

from .language_model import LanguageModel
from .model import Model

__all__ = ["LanguageModel", "Model"]
