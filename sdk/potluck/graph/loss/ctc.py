"""Connectionist temporal classification (Graves et al. 2006, section 4.1) in plain operators: what
torch has as one kernel, which devices do not run.

For the likelihood of a row's labels, the logarithms of eq. (6) and (7) are summed step by step.
"""

import torch

MOST_STEPS = 256  # each becomes some ten operators; the model is made in some 30 s
_NEVER = -1e30  # a logarithm that has a gradient, unlike -inf


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | list[int],
    target_lengths: torch.Tensor | list[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor | None:
    """The loss as torch.nn.functional.ctc_loss gives it. None for labels laid end to end, which
    belong to no row, and for more than `MOST_STEPS`, or a number of steps that is free.

    A row whose labels do not fit into its steps has the loss inf, and no gradient (torch: NaN).

    Parameters
    ----------
    log_probs
        Logarithms of softmax [steps, rows, classes].
    targets
        Labels [rows, most labels]; what is beyond a row's length does not count.
    input_lengths, target_lengths
        Of each row.
    blank
        The class that is no label.
    reduction
        "none", "sum" or "mean" (of each row's loss by its number of labels).
    zero_infinity
        Whether a row whose labels do not fit into its steps counts as 0.
    """
    if not isinstance(input_lengths, torch.Tensor) or not isinstance(target_lengths, torch.Tensor):
        return None
    n_steps = log_probs.shape[0]
    is_known = isinstance(n_steps, int) and n_steps <= MOST_STEPS
    if not is_known or log_probs.dim() != 3 or targets.dim() != 2:
        return None
    n_labels = target_lengths.unsqueeze(1)
    is_label = torch.arange(targets.shape[1]) < n_labels
    labels = torch.where(is_label, targets, blank)
    between = torch.full_like(labels, blank)
    states = torch.cat([torch.stack([between, labels], 2).flatten(1), between[:, :1]], 1)
    before = torch.nn.functional.pad(states, (2, 0), value=blank)[:, :-2]
    may_skip = (states != blank) & (states != before)
    place = torch.arange(2 * targets.shape[1] + 1)
    emitted = log_probs.gather(2, states.unsqueeze(0).expand(n_steps, -1, -1))
    so_far = torch.where(place < 2, emitted[0], _NEVER)
    for step in range(1, n_steps):
        padded = torch.nn.functional.pad(so_far, (2, 0), value=_NEVER)
        ways = [so_far, padded[:, 1:-1], torch.where(may_skip, padded[:, :-2], _NEVER)]
        reached = torch.stack(ways).logsumexp(0).clamp(min=_NEVER) + emitted[step]
        so_far = torch.where(step < input_lengths.unsqueeze(1), reached, so_far)
    ends = (place == 2 * n_labels) | (place == 2 * n_labels - 1)
    loss = -torch.where(ends, so_far, _NEVER).logsumexp(1)
    is_impossible = loss > -_NEVER / 2
    loss = torch.where(is_impossible, 0.0 if zero_infinity else torch.inf, loss)
    if reduction == "mean":
        return (loss / target_lengths.clamp(min=1)).mean()
    return loss.sum() if reduction == "sum" else loss
