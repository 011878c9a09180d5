"""Timings: each against a plain implementation in the same run, reported as ratios."""
