"""Do it over the network; a Trace comes out."""
