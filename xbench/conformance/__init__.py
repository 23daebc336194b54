"""Tests that a model must pass to be scored: `pytest --pyargs xbench.conformance --model mypackage.MyVLM`.

Arguments of the model's constructor are given as YAML or JSON: `--model-args '{checkpoint: weights.safetensors}'`.
"""
