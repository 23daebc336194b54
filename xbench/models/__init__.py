"""LightningModules: one per vision-language model, and the instruments that show what a number is worth."""
