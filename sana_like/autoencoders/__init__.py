"""Deep-compression autoencoders."""
