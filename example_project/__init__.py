"""A small shop that shows django_rlock at work, with the server for it, for the tests and for the benchmarks."""
