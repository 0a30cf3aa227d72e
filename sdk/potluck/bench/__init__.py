"""Every figure in the README can be made again from here."""
