"""Haulage: a job orchestrator for long, heavy jobs on PostgreSQL."""

__version__ = "0.1.0"
