"""How the system grows: what one of everything costs, measured, and what many of it come to, simulated."""
