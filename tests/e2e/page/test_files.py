"""Files that are dropped or picked go into the message as text."""

import base64

HOSTILE = "<img src=x onerror=\"document.title = 'owned'\">.txt"


def drop(page, *files: tuple[str, bytes]) -> None:
    """As if from the desktop."""
    page.js(
        """const data = new DataTransfer();
        for (const [name, bytes] of arguments[0]) {
          data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name));
        }
        for (const kind of ["dragover", "drop"]) {
          const how = { dataTransfer: data, bubbles: true, cancelable: true };
          document.getElementById("log").dispatchEvent(new DragEvent(kind, how));
        }""",
        [(name, base64.b64encode(content).decode()) for name, content in files],
    )


def names(page) -> list[str]:
    return page.texts("#files li > span:first-of-type")


def test_in_the_message(scripted):
    """Before what was typed, each in a fence longer than any of its own; shown folded, and kept when it is edited."""
    page = scripted
    drop(
        page,
        ("a.md", b"One\r\n```\ncode\n```\n"),
        (HOSTILE, "\ufeffB\u00e9".encode()),
        ("wide.txt", "W".encode("utf-16")),
    )
    page.until(lambda: len(names(page)) == 3)
    assert names(page)[:2] == ["a.md", HOSTILE] and not page.all("img")
    page.press("Remove wide.txt")
    wanted = f"a.md:\n````\nOne\n```\ncode\n```\n````\n\n{HOSTILE}:\n```\nB\u00e9\n```\n\nWhat is it?"
    body = page.answered("What is it?", "1")
    assert body["messages"][0]["content"] == wanted and names(page) == []
    page.all(".sent-file summary")[0].click()
    assert page.texts(".sent-file pre")[0] == "One\n```\ncode\n```" and HOSTILE in page.texts(".sent-file")[1]
    page.press("Edit")
    page.all(".edit textarea")[0].send_keys("!")
    page.press("Send", ".said")
    assert page.request(1)["messages"][0]["content"] == wanted + "!"
    page.say("2")
    page.end()
    page.load()
    assert len(page.all(".sent-file")) == 2 and not page.all("img")


def test_alone_and_kept_until_sent(scripted):
    page = scripted
    drop(page, ("notes.txt", b"Some notes"))
    page.until(lambda: names(page) == ["notes.txt"])
    page.load()
    assert names(page) == ["notes.txt"]


def test_without_words(scripted):
    page = scripted
    drop(page, ("notes.txt", b"Some notes"))
    page.until(lambda: names(page) == ["notes.txt"])
    page.id("send").click()
    assert page.request(0)["messages"][0]["content"] == "notes.txt:\n```\nSome notes\n```"
    page.say("1")
    page.end()
    assert page.texts("#conversations .open") == ["notes.txt"]


def test_what_is_no_text(scripted):
    page = scripted
    for name, content, words in (
        ("a.png", b"\x89PNG\xff\xfe", "a.png cannot be read as text."),
        ("b.bin", b"text\0more", "b.bin is no text."),
        ("c.txt", b"x" * (3 * 2**20 + 1), "c.txt is too large: 3.0 MiB"),
    ):
        drop(page, (name, content))
        page.until(lambda words=words: words in page.id("toast").text)
    drop(page, ("d.png", b"\x89PNG\xff\xfe"), ("e.txt", b"e"), ("f.bin", b"text\0more"))
    page.until(lambda: page.id("toast").text == "d.png cannot be read as text. f.bin is no text.")
    assert page.texts("#files li .soft") == ["1 character"]
    page.press("Remove e.txt")
    assert names(page) == [] and not page.id("drop-here").is_displayed()


def test_picked(scripted, tmp_path):
    page = scripted
    (tmp_path / "picked.txt").write_text("Picked")
    page.js("document.getElementById('pick').hidden = false")
    page.id("pick").send_keys(str(tmp_path / "picked.txt"))
    page.until(lambda: names(page) == ["picked.txt"])
