"""One request shared inside its operators: what may be shared, who computes which rows, and how
long that takes.
"""
