"""A model divided by hidden columns, heads, channels or vocabulary instead of rows."""
