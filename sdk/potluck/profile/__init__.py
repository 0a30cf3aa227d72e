"""How fast, how hungry, how connected; stored and cached."""
