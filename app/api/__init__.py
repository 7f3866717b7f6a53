"""The web side: accepts jobs, answers questions about them, computes nothing."""
