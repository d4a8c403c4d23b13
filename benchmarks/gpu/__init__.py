"""``make gpu``: what needs a GPU to be known, measured step by step within a time budget."""
