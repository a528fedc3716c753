"""Tools of development; the service itself imports none of them."""
