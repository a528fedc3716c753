"""System checks of the policy, by topic."""


def errors():
    return []


def one_line(error):
    return str(error)
