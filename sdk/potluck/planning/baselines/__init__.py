"""The planners of the literature, on our problem form. Others build on Asteroid's."""
