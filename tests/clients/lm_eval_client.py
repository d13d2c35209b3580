"""lm-eval against a running server: log-likelihoods and generation of the tasks beside this file, with tokens from the
server. For `python_clients.py`, in lm-eval's environment; a text is a token or more of the built-in model there.
"""

import math
import os
from pathlib import Path

TASKS = Path(__file__).with_name("lm_eval_task")
NUM_ITEMS = len((TASKS / "items.jsonl").read_text().splitlines())


def evaluate(model: str, url: str, tasks: list[str], **more: object) -> dict[str, dict]:
    """The results of each task. No network: the data is a file, the tokenizer the server's."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    os.chdir(TASKS)  # the tasks name their file
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=model,
        model_args={"model": "demo", "base_url": url, "max_length": 1024, "max_retries": 1},
        tasks=tasks,
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
        **more,
    )
    assert all(len(found["samples"][task]) == NUM_ITEMS for task in tasks)
    return found["results"]


def completions(url: str) -> None:
    tasks = ["vkprefill_choice", "vkprefill_rolling", "vkprefill_generate"]
    for batch_size in (1, 2):
        found = evaluate("local-completions", f"{url}/v1/completions", tasks, batch_size=batch_size)
        assert found["vkprefill_choice"]["acc,none"] == 1, "words of English are likelier than none"
        perplexity = found["vkprefill_rolling"]["byte_perplexity,none"]
        assert math.isfinite(perplexity) and perplexity > 1
        assert 0 <= found["vkprefill_generate"]["exact_match,none"] <= 1


def chat(url: str) -> None:
    task = "vkprefill_generate"
    found = evaluate("local-chat-completions", f"{url}/v1/chat/completions", [task], apply_chat_template=True)
    assert 0 <= found[task]["exact_match,none"] <= 1
