"""PURE. In which order each device acts; plans compiled to programs."""
