"""Runs of a study or a sweep: what each does, where, and the rows that they write."""
