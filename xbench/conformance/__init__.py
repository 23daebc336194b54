"""Tests that every model must pass: `pytest --pyargs xbench.conformance --model mypackage.MyVLM`.

Give constructor arguments as YAML or JSON: `--model-args '{checkpoint: weights.safetensors}'`.
"""
