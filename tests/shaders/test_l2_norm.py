import numpy as np
import pytest

from tests.reference import norm
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check
from tests.shaders.same_input_kernels import check_on_llama_cpp
from vkprefill.engine import kernels

EPS = 1e-6


@pytest.mark.parametrize(
    ("tokens", "heads", "dim"),
    [(1, 16, 128), (2, 1, 16), (63, 3, 32), (64, 2, 36), (65, 1, 256), (127, 2, 64), (200, 1, 4)],
)
def test_heads(device, tokens, heads, dim):
    rng = np.random.default_rng(dim)
    qk = rng.standard_normal((tokens, 2 * heads, dim)) * np.exp(
        rng.uniform(-10, 3, (tokens, 2 * heads, 1))
    )  # from below sqrt(eps) up
    values = np.full((tokens, 3 * dim), np.nan)  # stay as they are
    qkv = np.concatenate([qk.reshape(tokens, -1), values], axis=1).astype(np.float32)
    run = KernelRun(device, tokens, tokens + 3)
    kernels.l2_norm(run.program, run.in_out("qkv", qkv), key_heads=heads, key_dim=dim, eps=EPS)
    got = run.finish()["qkv"]
    np.testing.assert_array_equal(got[:, qk[0].size :].view(np.uint32), qkv[:, qk[0].size :].view(np.uint32))
    expected = norm.l2_norm(qkv[:, : qk[0].size].reshape(qk.shape).astype(float), EPS)
    expected[:, :heads] /= np.sqrt(dim)
    got = got[:, : qk[0].size].reshape(qk.shape)
    for part, which in (("queries", slice(None, heads)), ("keys", slice(heads, None))):
        check(f"l2_norm T {tokens}, {heads} heads of {dim}, {part}", got[:, which], expected[:, which], ELEMENTWISE)


def test_llama_cpp(device):
    """Its limit of 1e-5 is what notices a misplaced epsilon, on the queries of tiny-a."""
    check_on_llama_cpp(device, "q_conv_predelta", "k_conv_predelta")
