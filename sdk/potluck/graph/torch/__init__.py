"""From a torch module to a traced graph."""
