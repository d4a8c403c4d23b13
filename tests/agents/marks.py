"""The grader of the answers of `marked`."""

import time
from zlib import crc32

LOWEST, HIGHEST = 200, 800
GRADE_SECONDS = 0.1


def mark(task, result):
    """Grade by the answer's text alone: a fifth of the answers get 0, a fifth get 1."""
    time.sleep(GRADE_SECONDS)  # so that a kill finds grades under way
    place = crc32(result["text"].encode()) % 1000
    return min(max((place - LOWEST) / (HIGHEST - LOWEST), 0.0), 1.0)
