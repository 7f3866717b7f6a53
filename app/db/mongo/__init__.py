"""The MongoDB adapter: the same contract as PostgreSQL's, on a replica set."""
