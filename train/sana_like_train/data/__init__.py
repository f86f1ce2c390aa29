"""Captioned pictures for training: records, captions, splits, buckets, and the emoji packs."""
