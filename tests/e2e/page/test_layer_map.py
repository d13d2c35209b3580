"""The map of layers of `vkprefill serve`: from the API what the model gives, on the page as strips."""

import numpy as np
import pytest

import vkprefill
from tests.e2e.conftest import DEMO
from tests.unit.scripted_server import BUILT_IN
from vkprefill.explain.layer_map import layer_map
from vkprefill.server.engine.prompt_details import DIGITS, map_details

httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.usefixtures("gpu")


def test_the_models_own(server):
    """As in Python, to the digits that are told; its memory is given back."""
    ids = list(range(40, 440))
    body = {"prompt": ids, "max_tokens": 0, "layer_map": True}
    answer = server.client.post("/v1/completions", json=body).json()
    with vkprefill.load(BUILT_IN) as model:
        config, wanted = model.config, map_details(layer_map(model, ids))
    found = answer["layer_map"]
    assert found["kinds"] == wanted["kinds"] and found["bounds"] == wanted["bounds"] and len(found["bounds"]) == 201
    assert len(found["weights"]) == config.num_hidden_layers
    np.testing.assert_allclose(found["weights"], wanted["weights"], rtol=10.0**-DIGITS * 10)  # a digit more or less
    assert found["memory_bytes"] == wanted["memory_bytes"] > 0 == server.metric('device_memory_bytes{kind="capture"}')
    assert answer["usage"]["completion_tokens"] == 0 and answer["specprefill"]["prompt_n"] == len(ids)


def test_on_the_page(page):
    """Asked for when it is opened, of the prompt of the answer that is shown; a bar leads to its token."""
    page.ask(DEMO[0]["user"])
    box = page.id("layers")
    assert not page.all("#layers table")
    box.find_element("tag name", "summary").click()
    page.until(lambda: page.all("#layers table"))
    rows = [row.text for row in page.all("#layers th")]
    assert rows[:4] == ["0 delta net", "1 delta net", "2 delta net", "3 attention"]
    (strip, *_), bars = page.all("#layers svg"), page.all("#layers tr:first-child rect")
    assert strip.get_dom_attribute("viewBox") == f"0 0 {DEMO[0]['n_tokens']} 1" and len(bars) > 5
    assert strip.accessible_name.startswith("layer 0, delta net: most of token ")
    start = bars[-1].get_attribute("data-start")
    page.js("arguments[0].dispatchEvent(new MouseEvent('click', { bubbles: true }))", bars[-1])
    assert page.id("token").text.startswith(f"token {start},") and not page.overflows()
    page.ask("Hello")
    assert not page.all("#layers table") and box.get_attribute("open") is None, "of the answer before"
    page.id("new").click()
    assert not box.is_displayed()


def test_what_the_server_refuses_is_shown(page):
    page.ask("Hello")
    page.js(
        """window.fetch = async (path, { body }) => {
        window.sent = JSON.parse(body);
        return new Response(JSON.stringify({ error: { message: "delta-net rows: needs 9 MiB" } }), { status: 503 });
        };"""
    )
    page.id("layers").find_element("tag name", "summary").click()
    page.until(lambda: page.all("#layers .error"))
    assert "delta-net rows: needs 9 MiB" in page.texts("#layers .error")[0]
    sent = page.js("return sent")
    assert (sent["layer_map"], sent["max_tokens"], sent["messages"][-1]["content"]) == (True, 0, "Hello")
