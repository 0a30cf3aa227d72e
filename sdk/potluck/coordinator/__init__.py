"""Training that goes on while the notebook is closed: a coordinator has the run instead.

It is handed all that a run needs, as files: the model without the user's code, plan, weights and
optimizer state, and the batches that are left. It keeps a journal, so that whoever asks later knows
what happened, and so that it goes on itself where it was ended.
"""
