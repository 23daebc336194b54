"""What the field fixes: findings, prompts, published numbers."""
