"""Does sparse prefill keep the answers? Tasks with known answers, run densely and in several sparse ways."""
