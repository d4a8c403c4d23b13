"""LoRA adapters beside one another in one engine."""
