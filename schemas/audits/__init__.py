"""Audits, verdicts, and the tokens that verdicts quarantine."""
