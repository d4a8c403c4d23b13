"""Tasks to agents and rollouts back: how soon, how many, and beside Agent Lightning."""
