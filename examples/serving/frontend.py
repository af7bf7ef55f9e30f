"""The role that has requests: puts them into their queue, takes answers, and writes each down before it says that it has it."""

from __future__ import annotations

import json
import os
import random

import msgspec
from words import Answer, Request, answer_of, packed

from robust_run import roles

IN_FLIGHT = 48
"""Requests that are not answered."""
WORDS = (
    "who what why where is are was it that you they the a moon sea tree bird stone sing fall go stay old new".split()
)


def request(number: int, seed: int) -> Request:
    """Return a request: it follows from its number and a seed alone. A few are odd: no words at all, or far too many."""
    chance = random.Random(f"{seed}/{number}")
    count = {3: 0, 7: 60}.get(number % 50, chance.randint(1, 6))
    return Request(number, " ".join(chance.choices(WORDS, k=count))[:400], chance.randint(8, 48))


def read(path: str) -> dict[int, Answer]:
    """Return the answers that an earlier start of this worker wrote down; what it did not finish to write is cut off."""
    found: dict[int, Answer] = {}
    if os.path.exists(path):
        with open(path, "r+b") as file:
            data = file.read()
            end = data.rfind(b"\n") + 1
            file.truncate(end)
        for line in data[:end].splitlines():
            answer = msgspec.convert(json.loads(line), Answer)
            found[answer.number] = answer
    return found


def main(count: int, seed: int, folder: str) -> None:
    """Have so many requests answered. Requests that were put before are known by their keys, and count once."""
    path = os.path.join(folder, "answers.jsonl")
    requests, answers, found = roles.queue("requests"), roles.queue("answers"), read(path)
    asked = 0
    print(f"{len(found)} of {count} requests are answered", flush=True)
    with open(path, "a", encoding="utf-8") as file:
        while len(found) < count:
            while asked < min(count, len(found) + IN_FLIGHT):
                if asked not in found:
                    requests.put(packed(request(asked, seed)), key=str(asked))
                asked += 1
            for item in answers.take(16):
                answer = answer_of(item.payload)
                if answer.number not in found:
                    found[answer.number] = answer
                    file.write(json.dumps(msgspec.to_builtins(answer)) + "\n")
                    file.flush()
                    if len(found) % 20 == 0:
                        print(f"{len(found)} of {count} requests are answered: {answer.text}", flush=True)
                answers.done(item)
    print(f"all {count} requests are answered", flush=True)
