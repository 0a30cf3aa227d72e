"""Following what changes while a home works: pure, time comes in as an argument."""
