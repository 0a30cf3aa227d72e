"""A causal language model that writes: each device keeps the keys and values of the layers that it
has, so that a request brings new tokens alone.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelError
from potluck.graph.caches import MAX_NEW_TOKENS, with_caches
from potluck.graph.model import MAX_LAYERS, Model
from potluck.graph.partition.cuts import line
from potluck.graph.partition.layers import layers
from potluck.graph.tensor.allotment import TOLERANCE_FRAC
from potluck.graph.traced import SEQUENCE, Traced
from potluck.optional_packages import needed

from .arguments import Arguments

if TYPE_CHECKING:
    import torch

    from potluck.graph.tensor.model import DividedModel
    from potluck.graph.torch.cached_decoder import CachedDecoder

MAX_ROWS = 1024

# Of the sums of a model in one order against another, as part of its largest logit. Of a model in
# float64 transformers computes some in float32: turns of positions, and the weights of attention.
_TOLERANCE_FRAC = {"float32": 1e-4, "float64": 1e-5}
_TOLERANCE_FRAC_HALF = 5e-2
_WHOLE_TEXTS = "Model.from_torch runs it on whole texts."
_ODD = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
_WORDS = ("vocab_size", "num_hidden_layers")  # that a configuration has to say
_LOOKS = {"full_attention", "sliding_attention"}  # masks that are known
_INPUTS = ("ids", "start", "count")
_TRIAL_WINDOW = 3  # so that the tokens of a trial reach beyond it
_EXAMPLE_ROWS, _EXAMPLE_TOKENS = 2, 3


class LanguageModel(Model):
    """A causal language model for `run.generate`. Make one with `from_transformers`.

    Its inputs are `ids` [rows, tokens], the place `start` [rows] of the first of them in each row,
    and `count` [rows], how many of them count; its outputs the logits and the numbers of the
    likeliest next tokens, [rows, candidates].

    Attributes
    ----------
    rows
        So many texts are written at once.
    max_length
        Tokens of a text, with its prompt.
    n_candidates
        So many next tokens are told.
    vocabulary
        Tokens are numbers below this.
    stops
        Tokens that end a text.
    tokenizer
        Makes tokens of words, and words of tokens; None: texts are tokens.
    """

    rows: int
    max_length: int
    n_candidates: int
    vocabulary: int
    stops: tuple[int, ...]
    tokenizer: Any = None

    @classmethod
    def from_transformers(
        cls,
        lm: "torch.nn.Module",
        *,
        rows: int = 1,
        max_length: int = 1024,
        n_candidates: int = 64,
        tokenizer: Any = None,
        max_layers: int = MAX_LAYERS,
        merge_below: float = 0.0,
        name: str = "",
    ) -> "LanguageModel":
        """A model from a causal language model of `transformers`, such as LlamaForCausalLM.

        Its attention must be over keys and values that it hands to a `Cache`. That it answers with
        a cache as without one is tried.

        Parameters
        ----------
        lm
            The model.
        rows
            So many texts are written at once; each has memory for `max_length` tokens on every
            device, in the layers that it has.
        max_length
            Tokens of a text, with its prompt.
        n_candidates
            So many of the likeliest next tokens are told; sampling chooses among them.
        tokenizer
            With `encode` and `decode`, as those of `transformers`; default: texts are tokens.
        max_layers
            Operators are merged into at most so many layers.
        merge_below
            A layer with a smaller part of the model's work than this, from 0 to 1, joins a
            neighbour.
        name
            What plans call it; default: made from its class.

        Warns where its `generation_config` has what texts here are written without, such as a
        `repetition_penalty`. That has no say in `temperature`, `top_k` and `top_p` either: they are
        those of `generate`.

        Raises
        ------
        ModelError
            It is no causal language model, cannot be traced, or answers otherwise with a cache.
        """
        with needed():
            import torch
            import transformers

            from potluck.graph.torch.cached_decoder import CachedDecoder
            from potluck.graph.torch.trainability import check_module
            from potluck.graph.trace import trace

        if not isinstance(lm, transformers.PreTrainedModel) or lm.get_output_embeddings() is None:
            raise ModelError(
                f"a causal language model of transformers is expected, got {type(lm).__name__}.",
                next_step="Give one such as LlamaForCausalLM; Model.from_torch takes other "
                "modules, which answer and do not write.",
            )
        check_module(lm)
        _check_kinds(lm.config)
        _check_sizes(lm.config, rows, max_length, n_candidates)
        decoder = CachedDecoder(lm, max_length, n_candidates).eval()
        try:
            _check_answers(decoder)
        except ModelError:  # some call the attention that they know by themselves
            decoder.groups = False
            _check_answers(decoder)
        caches = decoder.caches(_EXAMPLE_ROWS)
        ids = torch.arange(_EXAMPLE_ROWS * _EXAMPLE_TOKENS) % lm.config.vocab_size
        count = torch.full((_EXAMPLE_ROWS,), _EXAMPLE_TOKENS)
        names = [*_INPUTS, *(f"{i}" for i in range(len(caches)))]
        head = lm.get_output_embeddings()
        try:
            traced = trace(
                decoder,
                [ids.view(_EXAMPLE_ROWS, -1), torch.zeros_like(count), count, *caches],
                input_names=names,
                sequence_dims=(1,),
            )
        finally:
            lm.set_output_embeddings(head)  # tracing leaves a copy of it there
        n_inputs = len(_INPUTS)
        own = {n_inputs + i: 2 + i for i in range(len(caches))}
        chosen = layers(
            line(_writing(with_caches(traced, own, rows), min(MAX_NEW_TOKENS, max_length))),
            n_inputs=n_inputs,
            max_layers=max_layers,
            merge_below=merge_below,
        )
        model = cls(
            inference=chosen,
            training=None,
            net=decoder,
            name=name or f"{type(lm).__name__.lower()}-{rows}x{max_length}",
            arguments=Arguments(inputs=_INPUTS),
        )
        model.rows, model.max_length = rows, max_length
        model.n_candidates = n_candidates
        model.vocabulary, model.tokenizer = lm.config.vocab_size, tokenizer
        _warn_of_settings(lm.generation_config)
        stops: Any = lm.generation_config.eos_token_id if lm.generation_config else None
        model.stops = tuple(stops) if isinstance(stops, list) else () if stops is None else (stops,)
        return model

    @property
    def net_kind(self) -> str:
        """The class of the module that it was made from."""
        return type(self._net.lm).__name__

    @property
    def request_rows(self) -> tuple[int, ...]:  # type: ignore[override]
        """Rows of its requests, ascending: those of few texts cost less."""
        return (*(1 << k for k in range((self.rows - 1).bit_length())), self.rows)

    def kinds(self, train: bool = False) -> tuple[str, ...]:
        """Of torch's operators alone: ONNX segments keep nothing."""
        return ("aten",)

    def check_inputs(self, *tensors: Any, train: bool = False) -> int:
        """Refuse to be called: a request goes on where others ended.

        Parameters
        ----------
        *tensors, train
            As of other models.

        Raises
        ------
        ModelError
            Always; says how it writes.
        """
        raise ModelError("a language model writes texts.", next_step="Call run.generate(prompt).")

    def save(self, path: "str | Path") -> None:
        """Refuse: the module itself is saved by `save_pretrained`.

        Parameters
        ----------
        path
            Where to.

        Raises
        ------
        ModelError
            Always.
        """
        raise ModelError(
            "a language model is made anew from its module.",
            next_step="Save that: lm.save_pretrained(path).",
        )

    def divided(
        self,
        shares: Sequence[int],
        *,
        tolerance_frac: float = TOLERANCE_FRAC,
        sequence: bool = False,
    ) -> "DividedModel":
        """The same model divided by tensor: each of several devices has some heads, with their
        keys and values, some columns and some words. Where a wire joins them, a token comes sooner.

        Its logits are those of this model within the rounding of sums in another order.

        Parameters
        ----------
        shares, tolerance_frac
            As of other models.
        sequence
            Must be False: a token at a time has no positions to divide.

        Raises
        ------
        ModelError
            Nothing of it can be divided, or not in this proportion; says the numbers.
        """
        if sequence:
            raise ModelError(
                "a language model that keeps keys and values is not divided by positions: most "
                "requests have one.",
                next_step="Divide it without sequence=True.",
            )
        from potluck.graph.tensor.language_model import DividedLanguageModel

        return DividedLanguageModel(self, shares, tolerance_frac=tolerance_frac)


# what changes the text in transformers' own `generate`, and the values that change nothing
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "guidance_scale": (1.0,),
    "num_beams": (1,),
    "stop_strings": ([],),
    "watermarking_config": (),
}


def _warn_of_settings(config: Any) -> None:
    """Say what of a generation config texts here are written without."""
    given = {name: getattr(config, name, None) for name in _SETTINGS}
    if said := {n: v for n, v in given.items() if v is not None and v not in _SETTINGS[n]}:
        words = ", ".join(f"{name}={value!r:.60}" for name, value in said.items())
        warnings.warn(
            f"its generation_config says {words}, and texts are written without: they may be other "
            "ones than its own generate gives.",
            stacklevel=3,
        )


def _check_kinds(config: Any) -> None:
    """Refuse what the tokens of a trial are too few to show."""
    missing = [word for word in _WORDS if not hasattr(config, word)]
    if missing:
        raise ModelError(
            f"{type(config).__name__} says no {missing[0]}.",
            next_step="Give a model of texts alone, as its language model.",
        )
    others = {*(getattr(config, "layer_types", None) or ())} - _LOOKS
    if others:
        raise ModelError(
            f"its layers of the kind {min(others)} look at other tokens than all, or a window, of "
            "those before.",
            next_step=_WHOLE_TEXTS,
        )


def _check_sizes(config: Any, rows: int, max_length: int, n_candidates: int) -> None:
    most_length = getattr(config, "max_position_embeddings", None) or max_length
    for what, number, most in (
        ("rows", rows, MAX_ROWS),
        ("max_length", max_length, most_length),
        ("n_candidates", n_candidates, config.vocab_size),
    ):
        if type(number) is not int or not 1 <= number <= most:
            raise ModelError(f"{what} is a whole number of 1 to {most}; got {number!r}.")
    n_kept = getattr(config, "keep_window_size", None) or max_length  # Doge
    if n_kept < max_length:
        raise ModelError(
            f"of more than {n_kept} tokens it looks at chosen ones (keep_window_size).",
            next_step=f"Make it with a max_length of {n_kept} at most. {_WHOLE_TEXTS}",
        )


def _writing(traced: Traced, n_tokens: int) -> Traced:
    """The same, costed for one new token of each row, as most requests have, with memory for
    `n_tokens`, as a prompt is read; places and masks are made wherever they are needed.
    """
    symbols = tuple(
        replace(symbol, hint=1) if symbol.name == SEQUENCE else symbol
        for symbol in traced.graph.symbols
    )
    places = frozenset({_INPUTS.index("start"), _INPUTS.index("count")})
    return replace(
        traced,
        graph=replace(traced.graph, symbols=symbols),
        small_inputs=places,
        largest=((SEQUENCE, n_tokens),),
    )


def _check_answers(decoder: "CachedDecoder") -> None:
    """Refuse a model that answers otherwise with a cache, in parts, than as a whole."""
    import torch

    from potluck.graph.torch.export_program import first_line

    lm, generator = decoder.lm, torch.Generator().manual_seed(0)
    parts = [part for part in ((3, 2), (1, 1), (2, 4)) if sum(part) <= decoder.max_length]
    n_tokens = min(decoder.max_length, 8)
    ids = torch.randint(lm.config.vocab_size, (2, n_tokens), generator=generator)
    start = torch.zeros(2, dtype=torch.int64)
    was_training = lm.training
    lm.eval()
    try:
        with torch.no_grad(), decoder.near_window(_TRIAL_WINDOW):
            caches = decoder.caches(2)
            if not caches:
                raise ModelError(
                    f"{type(lm).__name__} does not hand keys and values of each layer to a Cache.",
                    next_step=_WHOLE_TEXTS,
                )
            whole = lm(input_ids=ids, use_cache=False).logits
            for part in parts:
                count = torch.minimum(torch.tensor(part), n_tokens - start)
                if not bool(count.all()):
                    break
                new = torch.zeros(2, max(part), dtype=torch.int64)
                for row in range(2):
                    new[row, : count[row]] = ids[row, start[row] : start[row] + count[row]]
                logits, numbers, *caches = decoder(new, start, count, *caches)
                start = start + count
                expected = whole[torch.arange(2), start - 1]
                _compare(logits, expected.gather(1, numbers), expected, str(lm.dtype))
    except _ODD as error:
        raise ModelError(
            f"{type(lm).__name__} cannot be told masks and places of its tokens, and keys and "
            f"values of those before: {type(error).__name__}: {first_line(str(error))}",
            next_step=_WHOLE_TEXTS,
        ) from error
    finally:
        lm.train(was_training)


def _compare(
    logits: "torch.Tensor", expected: "torch.Tensor", all_logits: "torch.Tensor", dtype: str
) -> None:
    largest = float(all_logits.abs().max()) or 1.0
    tolerance_frac = _TOLERANCE_FRAC.get(dtype.removeprefix("torch."), _TOLERANCE_FRAC_HALF)
    differs = float((logits - expected).abs().max()) / largest
    misses = float((all_logits.amax(-1) - logits[:, 0]).abs().max()) / largest
    if not max(differs, misses) <= tolerance_frac:
        raise ModelError(
            f"with the keys and values of earlier tokens kept, it answers otherwise than without "
            f"({max(differs, misses):.1e} of its largest logit).",
            next_step=f"Its attention does more than look at keys and values. {_WHOLE_TEXTS}",
        )
