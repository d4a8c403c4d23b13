"""A million wrong inputs for every decoder of what comes from outside: ``make fuzz``."""
