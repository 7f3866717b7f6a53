"""What `DBInterface` asks of an adapter beyond the path of a job, one area a module."""
