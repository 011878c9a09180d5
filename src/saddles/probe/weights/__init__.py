"""Weights of a model, live or in checkpoints, and their change."""
