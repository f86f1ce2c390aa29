"""Scores of trained models on held-out data."""
