"""Building blocks shared by the transformers and the autoencoders."""
