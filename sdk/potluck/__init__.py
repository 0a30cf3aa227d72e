"""potluck: everyone brings what they have. See ARCHITECTURE.md for the flow."""
