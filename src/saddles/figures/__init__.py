"""Figures: drawn from trajectories, and from nothing else."""
