"""Token ids and positions as callers give them."""

import numpy as np
import pytest

from vkprefill.engine.token_input import checked_ids, checked_positions
from vkprefill.errors import RequestError


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_every_kind_of_integer(dtype):
    ids = checked_ids(np.array([0, 5, 100], dtype), 101)
    assert ids.dtype == np.int64 and ids.tolist() == [0, 5, 100]
    where = checked_positions(np.array([3, 5, 100], dtype), 3, first=0, last=2)
    assert where.dtype == np.int64 and where.tolist() == [3, 5, 100]


@pytest.mark.parametrize("ids", [[0, 5], (0, 5), range(0, 6, 5), [np.int32(0), 5], [np.uint64(0), np.uint64(5)]])
def test_every_kind_of_sequence(ids):
    assert checked_ids(ids, 6).tolist() == [0, 5]


@pytest.mark.parametrize(
    "ids",
    [[], [True], [1, True], [np.True_, 2], np.array([True]), [1.0], ["a"], [[1]], [[1], [1, 2]], 5, None, [None]],
)
def test_no_integers(ids):
    with pytest.raises(RequestError, match="^token_ids: found .*wanted"):
        checked_ids(ids, 10)


@pytest.mark.parametrize("ids", [[], (), range(0), np.zeros(0), np.zeros(0, np.int64)])
def test_none(ids):
    with pytest.raises(RequestError, match="^token_ids: found none, wanted at least one integer$"):
        checked_ids(ids, 10)


@pytest.mark.parametrize("bad", [-1, 10, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_out_of_range(bad):
    with pytest.raises(RequestError, match=r"token_ids: found -?\d+, wanted 0 to 9"):
        checked_ids([bad], 10)
    if bad >= 0:
        with pytest.raises(RequestError, match="token_ids"):
            checked_ids(np.array([bad], np.uint64), 10)


@pytest.mark.parametrize("positions", [[1, 1], [2, 1], [0, 2], [5, 2**31], [5, 2**64 - 1], [True, 7]])
def test_positions_that_do_not_increase(positions):
    with pytest.raises(RequestError, match="^positions: "):
        checked_positions(positions, 2, first=1, last=0)


def test_positions_of_another_length():
    with pytest.raises(RequestError, match="positions: found 1, wanted 2, one for each token"):
        checked_positions([4], 2, first=1, last=0)
