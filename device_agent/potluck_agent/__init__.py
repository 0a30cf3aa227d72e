"""The program on each device: announce, pair, meter, load, execute, stream."""
