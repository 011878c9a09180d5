"""Solvers that several labs use: flows, descents, stiff and multi-scale problems."""
