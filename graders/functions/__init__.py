"""Functions that grade, each in processes of its own."""
