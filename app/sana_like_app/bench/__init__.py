"""Measurements that `sana-like bench` makes."""
