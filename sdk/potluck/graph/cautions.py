"""What a model's user may not expect of how it is cut and answered, in words. Pure."""

from collections.abc import Iterator

from potluck.graph.partition.cuts import Linearization


def notes_of(line: Linearization, inference: Linearization, *, train: bool) -> tuple[str, ...]:
    """What keeps a model from being cut more finely, and what of its rows is not proven.

    Parameters
    ----------
    line
        The graph that is asked about.
    inference
        That of answers.
    train
        Whether `line` is that of training.
    """
    tied = sorted({name for _, _, name in line.tied})
    return (
        *(f"{name} is used in several places, which training keeps on one device" for name in tied),
        *(
            f"{name} is used in several places: stages that hold it add up its gradients in every "
            "step"
            for name in line.shared_names
        ),
        *cautions(line, inference, train),
    )


def cautions(line: Linearization, inference: Linearization, train: bool) -> Iterator[str]:
    """What may not be as its user thinks.

    Parameters
    ----------
    line, inference, train
        As for `notes_of`.
    """
    if line.traced.unproven:
        what = "the loss is a mean over rows" if train else "each row is answered by itself"
        yield (
            f"that {what} was tried on several batches, and is not proven: how "
            f"{line.traced.unproven} treats rows is not known"
        )
    for name in inference.traced.padded:
        yield (
            f"torch leaves zeros where the padding mask of {name or 'the module'} says so, if "
            "gradients are off; answers here have what its layers compute there. Make "
            "nn.TransformerEncoder with enable_nested_tensor=False for the same everywhere"
        )
