"""Pipelines: what jobs do. Concrete ones are reached by import path only, never imported by us."""
