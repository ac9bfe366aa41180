"""Plays the model: it reads the documents with its tool, and words what it found; it counts what it is asked."""

from __future__ import annotations

import json
import re

from crewai import BaseLLM
from pydantic import PrivateAttr


class Model(BaseLLM):
    """Answers by what the task and the conversation are about, as a model does.

    Args:
        note: notes what was really done.
        documents: the names of the documents there are.
    """

    llm_type: str = "scripted"
    _note: object = PrivateAttr()
    _documents: list = PrivateAttr()

    def __init__(self, note, documents):
        super().__init__(model="scripted")
        self._note, self._documents = note, documents

    def call(self, messages, *args, **kwargs):
        task = next(one["content"] for one in messages if one["role"] == "user")
        done = [one["content"] for one in messages if one["role"] == "assistant" and "Observation:" in one["content"]]
        who = next(name for name in ("researcher", "writer", "secretary") if f"You are {name}" in messages[0]["content"])
        self._note(f"model, {who} {len(done) + 1}")
        return getattr(self, f"_{who}")(task, done)

    def _researcher(self, task, done):
        if len(done) < len(self._documents):
            return f'Thought: next.\nAction: read_document\nAction Input: {{"name": "{self._documents[len(done)]}"}}'
        facts = [one.partition("Observation:")[2].strip().partition("\n")[0] for one in done]
        return "Thought: I have read them all.\nFinal Answer: " + "\n".join(f"- {fact}" for fact in facts)

    def _writer(self, task, done):
        facts = re.findall(r"- (\S+): (\d+) words, (.*)", task)
        lines = [f"{name} has {int(words):,} words; {most}." for name, words, most in facts]
        return "Thought: I know.\nFinal Answer: # What the documents say\n\n" + "\n".join(lines)

    def _secretary(self, task, done):
        if not done:
            report = task[task.index("# What") :].partition("\n\nBegin!")[0]
            mail = {"to": "ada@example.org", "subject": "The report", "text": report}
            return f"Thought: it goes out.\nAction: send_mail\nAction Input: {json.dumps(mail)}"
        return "Thought: it is out.\nFinal Answer: The report is on its way."

    def supports_function_calling(self):
        return False

    def supports_stop_words(self):
        return False

    def get_context_window_size(self):
        return 100_000

    def get_input_tokens_count(self, *args, **kwargs):
        return 1
