"""What every planner builds from: cuts to try, alike devices, rows and time of a stage."""
