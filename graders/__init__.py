"""The grader: takes finished attempts off the bus and gives them rewards."""
