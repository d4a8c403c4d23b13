"""Figures of a training job: files, pictures and pages."""
