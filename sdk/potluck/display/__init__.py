"""Text, HTML, plots and timelines of the records."""
