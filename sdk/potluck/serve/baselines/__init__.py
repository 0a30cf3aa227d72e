"""How others serve: the schemes of the literature and of practice, on our simulator. Pure."""
