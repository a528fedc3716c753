"""`make update`: take over a newer version of the template, and keep every edit.

The recorded version and the wanted one are generated with the recorded answers into two temporary commits, and git
cherry-picks the difference between them: three-way, renames followed, conflicts left as ordinary conflicts.
"""
