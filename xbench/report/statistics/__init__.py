"""What the runs say: scores with their intervals, tests between models, and what lesions have to do with it."""
