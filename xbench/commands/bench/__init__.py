"""Command `bench`: pairs of a model and a dataset, in variants, one after another."""
