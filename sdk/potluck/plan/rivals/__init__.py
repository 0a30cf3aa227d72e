"""The planners of the literature, on our problem form. Asteroid's is `plan/hybrid.py`, on which others build."""
