"""One request shared with helpers, at work: tables of splits, their programs, and the model that
answers by them.
"""
