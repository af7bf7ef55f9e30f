"""What an agent sees of its ranks while they train: waits, how long steps take, what is collected when one hangs."""
