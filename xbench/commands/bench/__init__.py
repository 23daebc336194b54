"""The whole benchmark in one command: pairs of a model and a dataset, in variants, one after another."""
