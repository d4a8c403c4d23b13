"""verl's engines, and the platform that lets them run without an accelerator."""
