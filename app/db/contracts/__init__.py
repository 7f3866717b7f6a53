"""What `DBInterface` promises, one protocol for each area."""
