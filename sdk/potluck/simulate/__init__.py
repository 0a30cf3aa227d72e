"""What would happen: compiled programs under virtual time, on shared media. Pure."""

from potluck.simulate.programs import simulate, steady_s

__all__ = ["simulate", "steady_s"]
