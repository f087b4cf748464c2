"""A small shop that shows django_rlock at work, and the server for it, the tests and the benchmarks."""
