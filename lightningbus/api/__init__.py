"""The Python API: what `import lightningbus` offers, on the objects that the command line uses."""
