"""The note on a threshold of pass@k that does not fit the rewards: in the report, and in every evaluation. Pure."""

PASS_NOTE = """multiIf(
        highest < {threshold} AND (lowest, highest) != (0, 0), concat('none is ', toString({threshold}), ' or more; '),
        lowest >= {threshold} AND (lowest, highest) != (1, 1), concat('all are ', toString({threshold}), ' or more; '),
        {threshold} = 1 AND highest > 1, '1 may not be a success; ', '')"""
RANGE = "concat('rewards are ', toString(round(lowest, 4)), ' to ', toString(round(highest, 4)))"


def select_pass_note(threshold: str, advice: str = "") -> str:
    """Build the SQL of the note, from the columns ``lowest`` and ``highest``; empty where the threshold fits.

    ``threshold`` is SQL of a reward, and ``advice`` the text that follows.
    """
    note = PASS_NOTE.replace("{threshold}", threshold)
    return f"if(({note} AS doubt) = '', '', concat(doubt, {RANGE}, '{advice}'))"
