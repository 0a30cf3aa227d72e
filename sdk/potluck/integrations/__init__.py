"""Training loops of other libraries, whose steps devices of a home take."""
