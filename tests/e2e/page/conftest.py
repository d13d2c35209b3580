"""One server for all tests of the page, a fresh page for each."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.e2e.page.browser import SCRIPTED, Page
from tests.e2e.server_process import ServerProcess


@pytest.fixture(scope="package")
def server(gpu) -> Iterator[ServerProcess]:
    sparse = ("--specprefill-min-tokens", 0, "--no-specprefill-break-even")
    with ServerProcess(*sparse, "--spec-type", "ngram", "--no-spec-draft-adaptive") as started:
        yield started


@pytest.fixture
def page(driver, server) -> Iterator[Page]:
    """No test may leave an error in the console or ask another host for anything."""
    page = Page(driver, server.url)
    yield page
    page.as_before()
    assert page.errors() == []
    assert page.hosts() == {urlsplit(server.url).netloc}


@pytest.fixture
def scripted(page) -> Page:
    page.js(SCRIPTED)
    return page
