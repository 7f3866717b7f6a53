"""The parts of `DBInterface`, one protocol for each area."""
