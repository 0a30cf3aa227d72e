"""Which rows of its input an operator needs, and operators of some rows.

Pure, but for torch's shapes.
"""
