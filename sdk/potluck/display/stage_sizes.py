"""Micro-batches of a plan in words: one size, or those of each stage. Pure."""

from potluck.records import Plan


def counted(plan: Plan) -> str:
    """How many of how many rows; of each stage, where these take their own."""
    if len(plan.sizes) == 1:
        return f"{plan.n_micro_batches} × {plan.micro_batch}"
    each = zip(plan.counts, plan.stages, strict=True)
    return " | ".join(f"{count} × {stage.rows}" for count, stage in each)


def notes(plan: Plan) -> list[str]:
    """Of each stage that takes its own."""
    return [
        f"stage {index} takes {count} × {stage.rows} rows"
        for index, (stage, count) in enumerate(zip(plan.stages, plan.counts, strict=True))
        if stage.rows != plan.micro_batch
    ]
