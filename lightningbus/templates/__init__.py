"""The files that `lightningbus init` writes; they import nothing of lightningbus."""
