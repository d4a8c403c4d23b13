"""Results and rewards in numbers of NumPy."""

import numpy as np


def numbers_of_libraries(task):
    return {"reward": np.array(1.0), "count": np.int64(3), "solved": np.bool_(True)}


def grades_by_numbers(task):
    return {"count": np.array(3), "solved": np.array(True)}


def numpy_bool(task, result):
    return np.bool_(result["solved"] and result["count"] == 3)
