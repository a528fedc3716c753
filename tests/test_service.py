"""The services' own tests and targets, run as a newcomer would run them. Slow: real workers are killed in there."""


import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("examples", ["yes", "no"])
def test_own_tests_pass(bake, run_in, examples):
    """`make check` and `make test` of a generated service, with and without the worked examples."""
    service = bake(ci="none", worked_examples=examples)
    run_in(service, "make", "check")
    print(run_in(service, "make", "test", timeout=900))
