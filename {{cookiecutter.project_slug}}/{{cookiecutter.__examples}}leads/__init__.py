"""Worked example: a lead and its alert to the team, at least once, no marker, swept until confirmed."""
