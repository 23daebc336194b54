"""What the user types: each command is a function of the words after its name, and raises a `UserError` about them."""
