"""The words of the step buffer: what a recorded program is told anew before each run. shaders/include/step.glsl has the
same names.
"""

from enum import IntEnum

STEP_WORDS = 16


class StepWord(IntEnum):
    """Index of each 32-bit word."""

    NUM_TOKENS = 0  # of this run, at most the program's num_rows
    CACHE_LEN = 1  # keys in the cache before it
    PENALTY = 2  # bits of the float32 that is taken from the logits of tokens marked as seen
    NUM_CANDIDATES = 3  # best tokens to find, 0 for none
    NUM_QUERIES = 4  # whose softmax rows are written
    NUM_KEYS = 5  # of such a row
    PROMPT_KEYS = 6  # of them, those that importance is summed for
    WAITING = 7  # rows of the few-rows run before that are accepted and not yet part of the recurrent states
    KEPT_ROW = 8  # where delta-net layers keep the rows of this few-rows run
