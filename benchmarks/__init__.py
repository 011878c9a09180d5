"""Timings; never run by the tests."""
