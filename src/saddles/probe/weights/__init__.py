"""Weights of a model, live or in files, and their change."""
