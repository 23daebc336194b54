"""Lightning callbacks: evaluation, the files of a run, the console and Weights & Biases."""
