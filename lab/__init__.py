"""Clusters on one machine, for development and demonstration."""
