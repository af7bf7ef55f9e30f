"""Notices reach who is to be told, however slow or broken that is, and nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from jobs import wait_for
from notices import Webhook, incident, webhook

from robust_run.clock import SystemClock
from robust_run.launcher.records.notifier import notifier as notifying
from robust_run.launcher.records.notifier.delivery import Delivery, DeliveryResult
from robust_run.launcher.records.notifier.notifier import LoopSay, Notifier, missing_commands, notifier_of
from robust_run.launcher.records.notifier.sender import MOST_WAITING, Sender
from robust_run.launcher.records.notify.limiter import Limiter
from robust_run.launcher.records.notify.target import NotifyTarget
from robust_run.launcher.records.notify.wording import About

ABOUT = About(run_id="run", script="train.py", host="gpu-0", run_directory="/runs/run")
OPEN = Limiter(burst=10_000, tokens=10_000.0)


class Making:
    """Makes notifiers, and closes them when the test is over."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.made: list[Notifier] = []

    def __call__(self, hook: Webhook, limiter: Limiter = OPEN, webhook_s: float = 30.0) -> Notifier:
        target = NotifyTarget(url=hook.url)
        sender = Sender(target, self.said.append, Delivery(target, webhook_s=webhook_s), pause_s=0.01)
        self.made.append(Notifier(ABOUT, [sender], SystemClock(), limiter))
        return self.made[-1]


@pytest.fixture
def making(monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    monkeypatch.setattr(notifying, "LAST_S", 60.0)  # a busy machine may take longer to send what is asked for here
    making = Making()
    yield making
    for notifier in making.made:
        notifier.close(0.0)


def test_an_incident_is_told_when_it_opens_and_when_it_is_over(making: Making) -> None:
    with webhook() as hook:
        notifier = making(hook)
        notifier.opened(incident())
        notifier.resolved(msgspec.structs.replace(incident(), resumed_s=1010.0))
        assert notifier.ended("failed", 9, "why", incident(action="stop")) == 0
        assert [told["event"] for told in hook.told] == ["incident_opened", "incident_resolved", "job_ended"]
        assert hook.told[0]["schema"] == 1
        assert notifier.counts() == {"sent": 3, "failed": 0, "suppressed": 0}
    assert making.said == []


def test_a_script_whose_name_is_no_text_is_told_of(making: Making) -> None:
    with webhook() as hook:
        target = NotifyTarget(url=hook.url)
        about = msgspec.structs.replace(ABOUT, script="a\udcffb.py")
        making.made.append(Notifier(about, [Sender(target, making.said.append)], SystemClock(), OPEN))
        assert making.made[-1].ended("done", 0, "", None) == 0
        assert [told["script"] for told in hook.told] == ["a?b.py"]
    assert making.said == []


def test_a_server_that_fails_is_asked_again_until_it_answers(making: Making) -> None:
    with webhook(lambda number: 503 if number < 3 else 200) as hook:
        notifier = making(hook)
        notifier.opened(incident())
        hook.wait_told(1)
        assert hook.requests == 4
    assert making.said == []


def test_one_that_always_fails_is_said_once_without_the_secret_and_costs_later_ones_nothing(making: Making) -> None:
    with webhook(lambda number: 404 if number < 3 else 200) as hook:
        notifier = making(hook)
        for number in range(1, 5):
            notifier.opened(incident(number))
        told = hook.wait_told(1)
        assert told[0]["suppressed"] == 3
        assert "and 3 notices before this one were not sent" in told[0]["text"]
        wait_for(lambda: notifier.counts()["sent"] == 1, "the last to be counted", 60)
        assert notifier.counts()["failed"] == 3
    assert len(making.said) == 1
    assert "HTTP status 404" in making.said[0]
    assert "secret-path" not in making.said[0]


def test_a_server_that_hangs_holds_nobody_up(making: Making) -> None:
    with webhook(lambda _: None) as hook:
        notifier = making(hook)
        notifier.opened(incident())
        hook.wait_asked(1)
        for number in range(2, 5 * MOST_WAITING):
            notifier.opened(incident(number))  # returns, or the test is stuck
        assert notifier.counts()["suppressed"] == 5 * MOST_WAITING - 2 - MOST_WAITING
        assert notifier.close(0.0) == MOST_WAITING + 1


def test_a_storm_is_told_in_a_few_notices_that_say_how_many_were_not(making: Making) -> None:
    with webhook() as hook:
        notifier = making(hook, Limiter(burst=3, every_s=1e6, tokens=3.0))
        for number in range(1, 501):
            notifier.opened(incident(number))
        assert notifier.ended("failed", 1, "", incident(500, action="stop")) == 0
        told = hook.told
        assert [each["suppressed"] for each in told] == [0, 0, 0, 497]
        assert told[-1]["event"] == "job_ended"
        assert notifier.counts() == {"sent": 4, "failed": 0, "suppressed": 497}


def test_the_end_of_a_job_waits_only_so_long(making: Making) -> None:
    with webhook(lambda _: None) as hook:
        notifier = making(hook)
        notifier.opened(incident())
        hook.wait_asked(1)
        assert notifier.close(0.05) == 1
        assert not hook.released.is_set()
        assert notifier.close(0.0) <= 1
    assert len(making.said) == 1, "nobody was told of the incident: that is said, and once"
    assert making.said[0].endswith("1 notice was not sent: it has not answered, and the job is over")


def test_pauses_grow_and_a_server_may_ask_for_more() -> None:
    tries: list[float] = []

    class Busy(Delivery):
        def hand_over(self, body: bytes) -> DeliveryResult:
            tries.append(time.monotonic())
            return DeliveryResult(
                ok=len(tries) == 3, words="HTTP status 429", pause_s=0.05 if len(tries) == 1 else None
            )

    target = NotifyTarget(url="http://unused/")
    sender = Sender(target, lambda _: None, Busy(target), pause_s=0.01)
    notifier = Notifier(ABOUT, [sender], SystemClock(), OPEN)
    notifier.opened(incident())
    wait_for(lambda: notifier.counts()["sent"] == 1, "the third try", 60)
    assert tries[1] - tries[0] >= 0.05
    assert tries[2] - tries[1] >= 0.02
    notifier.close(0.0)


def test_what_cannot_be_used_is_said_and_left_out() -> None:
    said: list[str] = []
    assert notifier_of(["https://hooks.example.com/..."], ABOUT, SystemClock(), said.append) is None
    assert len(said) == 1
    assert "give it again" in said[0]


def test_it_is_said_which_of_several_targets_fails() -> None:
    said: list[str] = []
    with webhook() as sound, webhook(lambda _: 404) as broken:
        notifier = notifier_of(
            [sound.url, broken.url, "https://hooks.example.com/..."], ABOUT, SystemClock(), said.append
        )
        assert notifier is not None
        notifier.opened(incident())
        wait_for(lambda: notifier.counts()["failed"] == 1 and len(said) == 2, "both to be said", 60)
        sound.wait_told(1)
        notifier.close(0.0)
    assert said[0].endswith("(target 3 of 3)")
    assert said[1].startswith("--notify target 2 of 3, http://127.0.0.1:")
    assert "secret-path" not in "".join(said)


def test_lines_from_threads_are_said_on_the_loop() -> None:
    import asyncio

    said: list[str] = []
    where: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        where.append(threading.current_thread().name)

    say = LoopSay(note)
    say("before the loop")

    async def main() -> None:
        say.meet_loop()
        speak: Callable[[], None] = lambda: say("from a thread")  # noqa: E731
        thread = threading.Thread(target=speak)
        thread.start()
        thread.join()
        while len(said) < 2:
            await asyncio.sleep(0)

    asyncio.run(main())
    say("after the loop")
    assert said == ["before the loop", "from a thread", "after the loop"]
    assert set(where) == {threading.current_thread().name}


def test_a_command_that_is_not_there_is_said_when_the_job_starts_and_not_when_it_would_have_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "hook").write_text("away --key secret\n")
    told = ("there x", "gone --key secret", f"@{tmp_path}/hook", "https://example.org/secret", "'")
    lines = missing_commands(told, lambda program: f"/bin/{program}" if program == "there" else None)
    rest = "this node has no such command, so nobody would be told; the job goes on"
    assert lines == [
        f"--notify target 2 of 5, gone ...: {rest}",
        f"--notify target 3 of 5, @{tmp_path}/hook: {rest}",
    ]
