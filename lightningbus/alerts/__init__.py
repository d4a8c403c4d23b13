"""Alert rules: every condition that is watched, its threshold and its sentence, and how alerts are published."""
