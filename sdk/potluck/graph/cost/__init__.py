"""What each operator costs."""
