"""Language models that grade: what they are asked, their endpoint, and their answers."""
