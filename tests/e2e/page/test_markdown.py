"""Markdown of answers: all of it is shown, nothing of it runs, asks for anything or reaches out of its place."""

from tests.e2e.page.browser import exported, take_in

WHOLE = """# First

A [link](https://example.org/a?b=1 "title"), **bold**, *italic*, ~~gone~~, `code` and a\\
new line. https://example.org and a@example.org

#### Fourth

- one
  - inner
- [x] done
- [ ] open

3. three
4. four

> quoted

| left | right |
|:-----|------:|
| 1    | **2** |

```python
print("<b>")
```

---

![a picture](https://example.org/p.png) [ref]

[ref]: https://example.org/ref
"""


def render(page, text: str, pieces: int = 1) -> None:
    page.begin("Hello")
    step = -(-len(text) // pieces)
    for start in range(0, len(text), step):
        page.say(text[start : start + step])
    page.end()


def test_all_of_it(scripted):
    """As it comes piece by piece; blocks that are drawn once look as those that are drawn as a whole."""
    page = scripted
    render(page, WHOLE, 40)
    answer = ".answer > .text"
    names = "h4 h5 strong em del a li blockquote pre hr table ol".split()
    found = {name: page.texts(f"{answer} {name}") for name in names}
    assert found["h4"] == ["First"] and found["h5"] == ["Fourth"], "below the page's headings, no level left out"
    assert found["strong"] == ["bold", "2"] and found["em"] == ["italic"] and found["del"] == ["gone"]
    assert found["a"] == ["link", "https://example.org", "a@example.org", "a picture", "ref"]
    assert found["li"] == ["one\ninner", "inner", "\u2611 done", "\u2610 open", "three", "four"]
    assert found["blockquote"] == ["quoted"] and len(found["hr"]) == 1
    assert found["pre"] == ['print("<b>")'] and page.texts(".code-head span") == ["python"]
    assert page.texts(f"{answer} code")[0] == "code"
    assert [cell.get_attribute("align") for cell in page.all("td")] == ["left", "right"]
    assert page.all(f"{answer} ol")[0].get_attribute("start") == "3"
    links = page.all(f"{answer} a")
    assert links[0].get_attribute("href") == "https://example.org/a?b=1"
    assert {link.get_attribute("target") for link in links} == {"_blank"}
    assert all("noopener" in link.get_attribute("rel") for link in links) and not page.all("img")
    html = page.js("return document.querySelector('.answer > .text').innerHTML")
    page.load()
    assert page.js("return document.querySelector('.answer > .text').innerHTML") == html


HOSTILE = [
    "<script>owned = 1</script>",
    '<img src="x" onerror="owned = 1">',
    "<svg onload=owned=1><a xlink:href=javascript:owned=1><text>x</text></a></svg>",
    "<iframe srcdoc='<script>parent.owned = 1</script>'></iframe>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=owned=1&gt;'>",
    "<form action=https://example.org><input name=body><button>go</button></form>",
    "<style>* { display: none }</style><link rel=stylesheet href=https://example.org/x.css>",
    "<base href=https://example.org><meta http-equiv=refresh content='0;url=https://example.org'>",
    "<div id=log class=error style='position:fixed;inset:0'>over</div>",
    "[a](javascript:owned=1) [b](JaVaScRiPt:owned=1) [c](data:text/html,<script>owned=1</script>) [d](vbscript:x)",
    "[e](java&#10;script:owned=1) [f](&#106;avascript:owned=1) <javascript:owned=1>",
    '![g](javascript:owned=1) ![h](x" onerror="owned=1) ![i](https://example.org/i.png)',
    "[j](/props) [k](//example.org) [l](#log)",
    '```x" onclick="owned=1\n</code></pre><script>owned=1</script>\n```',
    "| <img src=x onerror=owned=1> |\n|---|\n| [a](javascript:owned=1) |",
    "`<img src=x onerror=owned=1>` **<img src=x onerror=owned=1>**",
    "$<img src=x onerror=owned=1>$\n\n$$\n<script>owned=1</script>\n$$",
    "<br onclick=owned=1><kbd onmouseover=owned=1>x</kbd><sub style=color:red>y</sub>",
    '&lt;script&gt;owned=1&lt;/script&gt; <a href="javascript:owned=1">x</a>',
    "[x]: javascript:owned=1\n\n[x] and [y][x]",
]


def test_nothing_runs(scripted):
    """Each of these in an answer, in its reasoning and in the message, of a conversation that is imported."""
    page = scripted
    given = {"files": [], "state": "done"}
    turns = [
        {"id": str(n), "parent": str(n - 1) if n else None, "user": text, "content": text, "reasoning": text, **given}
        for n, text in enumerate(HOSTILE)
    ]
    take_in(page, exported({"title": HOSTILE[1], "leaf": turns[-1]["id"], "turns": turns}))
    page.until(lambda: page.all("#conversations .open"))
    page.all("#conversations .open")[0].click()
    page.until(lambda: len(page.all("article")) == len(HOSTILE))
    found = page.js(
        """const bad = [];
        for (const node of document.querySelectorAll("article *")) {
          const bad_tag = /^(script|img|iframe|form|input|style|link|base|meta|object|embed)$/i;
          if (bad_tag.test(node.localName)) bad.push(node.outerHTML);
          if (node.localName === "svg" && !node.matches(".icon")) bad.push(node.outerHTML);
          for (const { name, value } of node.attributes) {
            const leads = /^\\s*(javascript|data|vbscript):/i.test(value);
            if (/^on|^style$|^id$/.test(name) || leads) bad.push(node.outerHTML);
          }
          const href = node.getAttribute("href");
          if (href !== null && !/^(https?:|mailto:)/.test(href)) bad.push(node.outerHTML);
        }
        return [bad, window.owned ?? null, document.title];"""
    )
    assert found[0] == [] and found[1] is None and "owned" not in found[2].split(" - ")[-1]
    texts = page.texts(".answer > .text")
    assert all("<" in text for text in texts[:9]), "what is not let through can be read"
    assert len(page.all("#log")) == 1 and page.id("log").get_attribute("role") == "log"


def test_the_browser_refuses_too(scripted):
    """Should the page make a mistake: HTML becomes nodes by way of the sanitiser alone."""
    page = scripted
    refused = page.js(
        "try { document.getElementById('log').innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; }"
    )
    assert refused == "TypeError"
    page.driver.get_log("browser")  # it says so


def test_formulas_stay_as_written(scripted):
    page = scripted
    text = "Inline $a_1 * b_2 * c$ and \\(x_i^2\\), $5 and $6.\n\n"
    text += "$$\n\\sum_{i=1}^n *i* \\\\ x_1\n$$\n\n\\[ a_b * c * d \\]\n"
    render(page, text)
    found = page.texts(".maths")
    assert found == ["$a_1 * b_2 * c$", "\\(x_i^2\\)", "$$\n\\sum_{i=1}^n *i* \\\\ x_1\n$$", "\\[ a_b * c * d \\]"]
    assert "$5 and $6." in page.texts(".answer > .text")[0] and not page.all(".answer em")


def test_direction(scripted):
    """An override turns no line; Arabic and Hebrew are set from the right."""
    page = scripted
    render(page, "safe \u202egnp.exe\n\n\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd\n")
    assert page.texts(".answer > .text p") == [
        "safe <U+202E>gnp.exe",
        "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    ]
    assert page.js("return getComputedStyle(document.querySelector('.answer p')).unicodeBidi") == "plaintext"


def test_harmless_tags(scripted):
    page = scripted
    render(page, "H<sub>2</sub>O, press <kbd>Esc</kbd><br>next <blink>x</blink>\n\n| a<br>b |\n|---|\n")
    assert page.texts(".answer sub") == ["2"] and page.texts(".answer kbd") == ["Esc"]
    assert page.texts("th") == ["a\nb"] and "<blink>x</blink>" in page.texts(".answer > .text")[0]


def test_long_answers_are_drawn_in_time_that_grows_with_them(scripted):
    """Blocks that are done are not made again."""
    page = scripted
    made = page.call(
        """const { MarkdownView } = await import("/markdown.js");
        const node = document.createElement("div"), view = new MarkdownView(node);
        let text = "", made = 0;
        const seen = new WeakSet();
        for (let i = 0; i < 60; i++) {
          text += `Paragraph ${i} of *many*.\\n\\n`;
          view.show(text);
          for (const child of node.children) if (!seen.has(child)) (seen.add(child), made++);
        }
        return [made, node.children.length];"""
    )
    assert made == [60, 60]
