"""Databases behind the domain: one package per engine."""
