"""Transformers: blocks assembled into the published models."""
