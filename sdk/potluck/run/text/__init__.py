"""Writing with a language model: which tokens go into the next request, and what is made of its
answer.
"""
