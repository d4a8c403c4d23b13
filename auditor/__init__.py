"""The auditor: recomputes a share of what engines sampled, and says which of them cannot be trusted."""
