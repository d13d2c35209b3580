"""An answer as it comes, and what becomes of it when it is stopped, cut, corrected, lost or left."""

HOSTILE = "<img src=x onerror=\"document.title = 'owned'\">"


def progress(page, **fields: object) -> None:
    page.js("answer({ prompt_progress: arguments[0] })", {"cache": 0, **fields})


def test_grows(scripted):
    """Text appears while more is to come, thoughts are folded."""
    page = scripted
    page.begin("Hello")
    assert page.id("stop").is_displayed() and page.all(".answer")[0].get_attribute("aria-busy") == "true"
    page.say(reasoning="Let me *see*.")
    page.until(lambda: "Thinking" in page.id("log").text)
    page.say("It is **bold**\n\n```html\n<b>a</b>")
    page.until(lambda: page.texts(".answer > .text strong") == ["bold"])
    assert page.texts(".reasoning summary")[0].startswith("Thought")
    first = page.all(".answer > .text > p")[0]
    page.say("\n```\nEnd")
    page.until(lambda: "End" in page.id("log").text)
    assert page.all(".answer > .text > p")[0] == first, "what did not change is not drawn anew: it may be selected"
    page.end()
    assert page.focused() == "message"
    assert page.texts(".answer pre") == ["<b>a</b>"] and not page.all(".answer b")
    assert not page.all(".reasoning .text")[0].is_displayed()
    page.all(".reasoning summary")[0].click()
    assert page.texts(".reasoning .text") == ["Let me see."] and page.texts(".reasoning em") == ["see"]
    assert page.all(".answer")[0].get_attribute("aria-busy") == "false"
    assert page.id("log").get_attribute("role") == "log"


def test_place_in_the_queue_and_progress(scripted):
    page = scripted
    page.begin("Hello")
    page.until(lambda: page.texts(".stage") == ["Waiting for the server"])
    seen = []
    for event in (
        {"stage": "queue", "queue_position": 2, "total": 10, "processed": 0, "time_ms": 100},
        {"stage": "queue", "queue_position": 1, "total": 10, "processed": 0, "time_ms": 9000},
        {"stage": "score", "total": 2000, "processed": 500, "time_ms": 100},
        {"stage": "prefill", "total": 4000, "processed": 1000, "time_ms": 1000},
        {"stage": "prefill", "total": 4000, "processed": 2000, "time_ms": 6000, "turns": 2, "share": 0.5, "wait_ms": 9},
        {"stage": "something new", "total": 10, "processed": 1, "time_ms": 1},
    ):
        before = page.texts(".stage")
        progress(page, **event)
        page.until(lambda before=before: page.texts(".stage") != before)
        seen.append(page.texts(".stage")[0].replace("\n", " ").replace("\u00a0", " "))
    assert seen == [
        "2 other messages are before this one",
        "One other message is before this one waiting for 9 s",
        "Finding what matters in the prompt 500 of 2,000 tokens",
        "Reading the prompt 1,000 of 4,000 tokens",
        "Reading the prompt 2,000 of 4,000 tokens, about 10 s left, "
        "in turns with 1 other answer (50 % of the time so far)",
        "The server works on it 1 of 10 tokens",
    ]
    assert page.all("progress")[0].get_attribute("value") == "1"
    page.say("Yes")
    page.end()
    assert not page.all(".stage")[0].is_displayed()


def test_corrected_answers(scripted):
    """What a check finds wrong is replaced, by code points, and what was there can be looked at."""
    page = scripted
    page.begin("Hello")
    page.say(f"\U0001f600 It is {HOSTILE}")
    progress(page, stage="check", total=10, processed=4, time_ms=1)
    page.until(lambda: "to check the answer" in page.id("log").text)
    page.js("answer({ choices: [], revised_from: 8, text: 'a pigeon' })")
    page.say(".")
    page.end()
    assert page.texts(".answer > .text") == ["\U0001f600 It is a pigeon."]
    page.all(".revision summary")[0].click()
    assert HOSTILE in page.texts(".revision")[0] and not page.all("img")
    assert page.answered("And then?", "Yes")["messages"][1]["content"] == "\U0001f600 It is a pigeon."


def test_stop_keeps_what_there_is(scripted):
    page = scripted
    page.begin("Hello")
    page.say("Half")
    page.until(lambda: "Half" in page.id("log").text)
    page.id("stop").click()
    page.until(lambda: "Stopped." in page.id("log").text)
    assert page.idle() and page.focused() == "message"
    body = page.answered("On", "Yes")
    assert [m["content"] for m in body["messages"]] == ["Hello", "Half", "On"]


def test_goes_on(scripted):
    """A cut answer goes on where it ended: the server gets what there is, and gives what is new."""
    page = scripted
    page.begin("Count")
    page.say(reasoning="Up.")
    page.say("One \U0001f600 two")
    page.js("answer({ choices: [{ delta: {}, finish_reason: 'length' }] }); end()")
    page.until(lambda: "Cut off" in page.id("log").text)
    page.press("Continue")
    assert page.request(1)["messages"][1] == {
        "role": "assistant",
        "content": "One \U0001f600 two",
        "reasoning_content": "Up.",
    }
    page.say(" four")
    page.js("answer({ choices: [], revised_from: 1, text: 'three' })")
    page.js("answer({ choices: [{ delta: {}, finish_reason: 'stop' }] })")
    page.end()
    assert page.texts(".answer > .text") == ["One \U0001f600 two three"], "a correction counts from what is new"
    assert "Cut off" not in page.id("log").text and len(page.all("article")) == 1


def test_left_in_the_middle(scripted):
    """A reload in mid-answer loses nothing that was shown, and the answer can go on."""
    page = scripted
    page.begin("Tell me")
    page.say("Once upon")
    page.until(lambda: "Once upon" in page.id("log").text)
    page.type("not yet sent")
    page.load()
    assert page.texts(".answer > .text") == ["Once upon"] and "was left before" in page.id("log").text
    assert page.id("message").get_attribute("value") == "not yet sent"
    names = [one.accessible_name for one in page.all(".answer .tools button")]
    assert names == ["Copy", "Continue", "Answer again"]


REFUSALS = (
    (
        400,
        {"message": "prompt: found 9 tokens", "code": "context_length_exceeded"},
        "longer than the model can read",
    ),
    (400, {"message": "temperature: found -1, wanted 0 or more"}, "cannot do what the settings"),
    (413, {"message": "body: too large"}, "more text than the server takes"),
    (503, {"message": "queue: 64 requests are waiting"}, "too much to do at the moment"),
    (503, {"message": "loading weights", "code": "loading"}, "still being loaded"),
    (503, {"message": "not enough memory for 9 tokens"}, "not enough memory"),
    (504, {"message": "stopped: not complete after 600 s"}, "longer than the server allows"),
    (500, {"message": HOSTILE}, "The model failed"),
    (418, {"message": "teapot"}, "refused this message"),
)


def test_refusals_in_words(scripted):
    """What a person can do, with the server's own text below it; the message is kept and can be tried again."""
    page = scripted
    page.begin("Hello")
    page.id("stop").click()
    for status, error, words in REFUSALS:
        page.js("window.refusal = { status: arguments[0], error: arguments[1] }", status, error)
        page.until(page.idle)
        page.press("Try again")
        page.until(lambda words=words: words in "".join(page.texts(".error")) and page.idle())
        (box,) = page.texts(".error")
        assert error["message"] in box and str(status) not in box and not page.all("img")
    page.js("window.refusal = null")
    sent = page.js("return sent.length")
    page.press("Try again")
    assert page.request(sent)["messages"] == [{"role": "user", "content": "Hello"}]
    page.say("Hi")
    page.end()
    assert page.texts(".answer > .text") == ["Hi"] and not page.all(".error")


def test_lost_connections(scripted):
    page = scripted
    page.begin("Hello")
    page.say("Half")
    page.until(lambda: "Half" in page.id("log").text)
    page.js("lose()")
    page.until(lambda: page.all(".error"))
    assert "connection to the server was lost" in page.texts(".error")[0] and page.texts(".answer > .text") == ["Half"]
    page.js("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    page.press("Try again")
    page.until(lambda: "cannot be reached" in page.id("log").text)
    page.load()
    assert "cannot be reached" in page.id("log").text and page.texts(".user .text") == ["Hello"]
