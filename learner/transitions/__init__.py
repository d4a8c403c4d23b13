"""LightningRL's transitions, and the token sequences built from them."""
