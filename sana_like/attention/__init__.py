"""Token mixers and the cross-attention that reads the text."""
