"""Events into rows of tables. Pure."""
