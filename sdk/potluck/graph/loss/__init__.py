"""Whether a loss is a mean over the rows of a batch, and how to divide it."""
