"""The auditor: recomputes a share of the tokens that engines sampled, and convicts engines that cannot be trusted."""
