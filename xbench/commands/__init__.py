"""Commands: each is a function of its arguments that raises a `UserError` for wrong ones."""
