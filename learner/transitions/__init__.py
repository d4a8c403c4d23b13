"""LightningRL's transitions, and the token sequences that are made of them."""
