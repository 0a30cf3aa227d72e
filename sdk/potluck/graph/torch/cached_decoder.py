"""A causal language model of `transformers` as a pure function of new tokens and of the keys and
values of those before, each row at a place of its own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache

_GROUPED = "potluck_grouped"  # the name of `_grouped_attention` among those of transformers
_EXPERTS = "batched_mm"  # transformers' other ways have sizes that depend on values


class _Slots(Cache):  # type: ignore[misc]
    """Keys and values of every layer. Entry `length` of each row is for padding.

    Parameters
    ----------
    keys, values
        Per layer, [rows, heads, length + 1, size].
    places
        Where the new tokens go, [rows, tokens].
    """

    def __init__(
        self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], places: torch.Tensor
    ) -> None:
        super().__init__(layers=[])
        self.keys_of, self.values_of = list(keys), list(values)
        self._places = places

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer, with those of the new tokens, [rows, heads, tokens,
        size].
        """
        for held, new in ((self.keys_of, key_states), (self.values_of, value_states)):
            places = self._places[:, None, :, None].expand_as(new)
            held[layer_idx] = held[layer_idx].scatter(2, places, new)
        return self.keys_of[layer_idx], self.values_of[layer_idx]

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """None is told: masks and positions are given. A layer that asks for itself goes by
        another place than its rows have.
        """
        if layer_idx is not None:
            raise ValueError("its layers go by the length of the cache")
        return 0


class _Seen(Cache):  # type: ignore[misc]
    """Notes which layer hands over what."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same keys and values."""
        self.pairs[layer_idx] = key_states, value_states
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing came before."""
        return 0


def _grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention whose heads in groups share keys and values, as those of one head with more
    queries: none is copied for each head.
    """
    n_groups = key.shape[1]
    n_shared = query.shape[1] // n_groups
    # [rows, groups, tokens x shared, size]: in this order no stride depends on how many tokens
    queries = torch.unflatten(query.transpose(1, 2), 2, (n_groups, n_shared)).transpose(1, 2)
    mask = attention_mask[:, :, :, None].expand(-1, -1, -1, n_shared, -1)
    found = scaled_dot_product_attention(
        _merged(queries), key, value, attn_mask=_merged(mask), scale=scaling
    )
    apart = torch.unflatten(found, 2, (query.shape[2], n_shared)).transpose(1, 2)
    return _merged(apart), None


def _merged(values: torch.Tensor) -> torch.Tensor:
    """The third and fourth dimension as one."""
    return values.clone(memory_format=torch.contiguous_format).flatten(2, 3)


AttentionInterface.register(_GROUPED, _grouped_attention)


class _LastToken(torch.nn.Module):
    """The head of a language model, for the last new token of each row alone."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head
        self.last: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, hidden] -> [rows, 1, vocabulary]."""
        assert self.last is not None
        last = self.last[:, None, None].expand(-1, 1, hidden.shape[-1])
        logits: torch.Tensor = self.head(hidden.gather(1, last))
        return logits


class CachedDecoder(torch.nn.Module):
    """Of each row's new tokens, behind those whose keys and values are given: the likeliest next
    tokens, and the keys and values with theirs.

    Parameters
    ----------
    lm
        A causal language model of `transformers`.
    max_length
        Tokens of a row.
    n_candidates
        So many next tokens are told.

    Attributes
    ----------
    groups
        Whether heads that share keys and values are computed together.
    """

    def __init__(self, lm: Any, max_length: int, n_candidates: int) -> None:
        super().__init__()
        config: Any = lm.config
        self.lm = lm
        self.max_length, self._n_candidates = max_length, n_candidates
        self.groups = True
        self._head: Any = _LastToken(self.lm.get_output_embeddings())
        self._n_layers = int(config.num_hidden_layers)
        known = signature(self.lm.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        kinds = getattr(config, "layer_types", None)
        self._kinds = frozenset(kinds or ())
        self._window = int(getattr(config, "sliding_window", None) or 0)
        if kinds is None and not getattr(config, "use_sliding_window", True):
            self._window = 0

    def forward(
        self, ids: torch.Tensor, start: torch.Tensor, count: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Logits and numbers of the likeliest next tokens, [rows, candidates] each, the likeliest
        first; then keys and values as in `caches`.

        Parameters
        ----------
        ids
            New tokens, [rows, tokens].
        start
            The place of the first of them, [rows].
        count
            How many of them count, [rows], at least 1; the others are padding.
        *caches
            Keys of each layer, then values, each [rows, heads, length + 1, size].
        """
        offsets = torch.arange(ids.shape[1], device=ids.device)[None]
        places = torch.where(offsets < count[:, None], start[:, None] + offsets, self.max_length)
        cache = _Slots(caches[: self._n_layers], caches[self._n_layers :], places)
        with self._as_told((count - 1).clamp(min=0)):
            answer = self.lm(
                input_ids=ids,
                attention_mask=self._masks(places),
                position_ids=places.clamp(max=self.max_length - 1),
                use_cache=True,
                **{self._cache_name: cache},
            )
        likeliest = answer.logits[:, 0].topk(self._n_candidates)
        return (likeliest.values, likeliest.indices, *cache.keys_of, *cache.values_of)

    def _masks(self, places: torch.Tensor) -> Any:
        """Which entries of the cache a token looks at: those up to its own, [rows, 1, tokens,
        length + 1].
        """
        entries = torch.arange(self.max_length + 1, device=places.device)[None, None, None]
        own = places[:, None, :, None]
        whole, near = entries <= own, entries > own - self._window
        if not self._window:
            return self._as_taken(whole)
        if not self._kinds:
            return self._as_taken(whole & near)
        masks = {"full_attention": whole, "sliding_attention": whole & near}
        return {kind: self._as_taken(masks[kind]) for kind in sorted(self._kinds)}

    def _as_taken(self, mask: torch.Tensor) -> torch.Tensor:
        """As the attention of this model takes a mask: eager, as numbers that are added."""
        if self.lm.config._attn_implementation != "eager":
            return mask
        numbers = torch.zeros_like(mask, dtype=self.lm.dtype)
        return numbers.masked_fill(~mask, torch.finfo(self.lm.dtype).min)

    @contextmanager
    def _as_told(self, last: torch.Tensor) -> Iterator[None]:
        """Inside, the head sees the last token alone, and attention and experts are computed as
        devices can.
        """
        config, head = self.lm.config, self.lm.get_output_embeddings()
        attention = config._attn_implementation
        experts = getattr(config, "_experts_implementation", None)
        self._head.last = last
        if self.groups and attention == "sdpa":
            config._attn_implementation = _GROUPED
        if experts is not None:
            config._experts_implementation = _EXPERTS
        try:
            self.lm.set_output_embeddings(self._head)  # some raise, with it in its place
            yield
        finally:
            self.lm.set_output_embeddings(head)
            self._head.last = None
            config._attn_implementation = attention
            if experts is not None:
                config._experts_implementation = experts

    @contextmanager
    def near_window(self, n_tokens: int) -> Iterator[None]:
        """Inside, whoever goes by the configuration's window looks at that many tokens at most,
        where a text may be longer than the window.

        Parameters
        ----------
        n_tokens
            How many.
        """
        window = self._window
        is_seen = n_tokens < window < self.max_length
        if is_seen:
            self._window = self.lm.config.sliding_window = n_tokens
        try:
            yield
        finally:
            if is_seen:
                self._window = self.lm.config.sliding_window = window

    def caches(self, rows: int) -> list[torch.Tensor]:
        """Of that many rows, with nothing in them: none where it hands over no keys and values, or
        not once in each layer.

        Parameters
        ----------
        rows
            How many.
        """
        seen = _Seen()
        mask = dict.fromkeys(self._kinds) if self._window and self._kinds else None
        ids = torch.zeros(1, 1, dtype=torch.int64)
        with torch.no_grad():
            self.lm(input_ids=ids, attention_mask=mask, use_cache=True, **{self._cache_name: seen})
        if [*seen.pairs] != [*range(self._n_layers)]:
            return []
        return [
            pair[k].new_zeros(rows, pair[k].shape[1], self.max_length + 1, pair[k].shape[3])
            for k in range(2)
            for pair in seen.pairs.values()
        ]
