"""A pool of threads that runs ranged jobs: retries what may work in a moment, reads the slowest twice, stops at a final error.

Jobs are pulled from their iterable one by one, so at most `threads` of them (and their buffers) exist at a time. Hedging, a
second read of what is still missing long after its peers are done, follows Dean and Barroso, "The Tail at Scale" (CACM 2013):
threads that have nothing left to do are used for it, so it takes nothing from other jobs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import Cancelled, StoreError, is_transient
from robust_run.store.jobs import Hedge, HedgedJob, Retry, TransferJob, Transferred

__all__ = ["Hedge", "HedgedJob", "Retry", "TransferJob", "Transferred", "transfer"]

#: `stop` is an event of the caller's, which cannot wake our condition: it is looked at so often.
_STOP_POLL_S = 0.05
_NOTHING = object()


def transfer(
    jobs: Iterable[TransferJob],
    *,
    threads: int,
    retry: Retry | None = None,
    hedge: Hedge | None = None,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> Transferred:
    """Run all jobs on at most so many threads. When it returns, or raises, none of them is running any more.

    `progress` is told the bytes of each job that is done, one call at a time. The first final error (or a transient one after all
    attempts) calls off the rest and is raised; `stop` does the same with `Cancelled`.
    """
    return _Pool(iter(jobs), max(1, threads), retry or Retry(), hedge, progress).run(stop)


class _Running:
    """A job that a thread is busy with."""

    def __init__(self, job: TransferJob, began_s: float) -> None:
        self.job, self.began_s = job, began_s
        self.hedge_cancel: Cancellation | None = None
        self.found: object = _NOTHING
        self.is_done = False


class _Pool:
    """One transfer. All fields are guarded by `_changed`."""

    def __init__(
        self,
        jobs: Iterator[TransferJob],
        threads: int,
        retry: Retry,
        hedge: Hedge | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._jobs, self._most_threads, self._retry, self._hedge, self._progress = jobs, threads, retry, hedge, progress
        self._pulling = threading.Lock()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._alive = self._hedging = 0
        self._is_exhausted = False
        self._running: list[_Running] = []
        self._seconds_per_byte: deque[float] = deque(maxlen=256)
        self._jobs_done = self._bytes_done = self._retries = self._hedges = 0

    def run(self, stop: threading.Event | None) -> Transferred:
        try:
            self._start_thread()
            with self._changed:
                while self._alive:
                    self._changed.wait(_STOP_POLL_S if stop is not None else None)
                    if stop is not None and stop.is_set():
                        self._fail(Cancelled("transfer", "", "called off"))
        except BaseException as error:  # Ctrl-C: buffers must not be touched after we have returned
            self._fail(error)
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return Transferred(
            jobs=self._jobs_done, size_bytes=self._bytes_done, retries=self._retries, hedges=self._hedges
        )

    def _start_thread(self) -> None:
        with self._changed:
            if len(self._threads) >= self._most_threads or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._work, name=f"transfer-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit on threads: the ones we have will do
                if not self._threads:
                    raise
                return
            self._threads.append(thread)
            self._alive += 1

    def _work(self) -> None:
        try:
            while (running := self._pull()) is not None:
                self._start_thread()  # there is work, so the next thread may have some as well
                try:
                    self._carry_out(running)
                finally:
                    with self._changed:
                        self._running.remove(running)
                        self._changed.notify_all()
            while self._hedge is not None and (running := self._slowest(self._hedge)) is not None:
                self._read_again(running)
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._alive -= 1
                self._changed.notify_all()

    def _pull(self) -> _Running | None:
        with self._pulling:
            if self._stopping.is_set() or self._is_exhausted:
                return None
            job = next(self._jobs, None)
            if job is None:
                self._is_exhausted = True
                return None
            running = _Running(job, time.monotonic())
            with self._changed:
                if self._stopping.is_set():  # since: it would not be told
                    return None
                self._running.append(running)
            return running

    def _carry_out(self, running: _Running) -> None:
        try:
            self._run_with_retries(running)
        except BaseException:
            with self._changed:
                found, running.found = running.found, _NOTHING
            if found is _NOTHING or not isinstance(running.job, HedgedJob):
                raise
            running.job.adopt(found)
        with self._changed:
            running.is_done = True
            if running.hedge_cancel is not None:
                running.hedge_cancel.cancel()
            self._jobs_done += 1
            self._bytes_done += running.job.size_bytes
            elapsed_s = time.monotonic() - running.began_s
            self._seconds_per_byte.append(elapsed_s / max(1, running.job.size_bytes))
            if self._progress is not None:
                self._progress(running.job.size_bytes)

    def _run_with_retries(self, running: _Running) -> None:
        try:
            running.job.run(0)
        except StoreError as error:
            if not is_transient(error):
                raise
            self._run_again(running, error)

    def _run_again(self, running: _Running, first_error: StoreError) -> None:
        # Imported only when something fails: it takes longer than a job does.
        from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

        attempt = -1

        def once() -> None:
            nonlocal attempt
            attempt += 1
            if attempt == 0:
                raise first_error
            if self._stopping.is_set():
                raise Cancelled("transfer", "", "called off")
            running.job.run(attempt)

        def count(_state: RetryCallState) -> None:
            with self._changed:
                self._retries += 1

        retry = self._retry
        retrying = Retrying(
            stop=stop_after_attempt(retry.attempts),
            wait=wait_random_exponential(multiplier=retry.first_wait_s, max=retry.longest_wait_s),
            retry=retry_if_exception(lambda error: is_transient(error) and running.found is _NOTHING),
            sleep=self._nap,
            before_sleep=count,
            reraise=True,
        )
        try:
            retrying(once)
        except StoreError as error:
            if is_transient(error) and attempt:
                error.add_attempts(attempt + 1)
            raise

    def _nap(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _slowest(self, hedge: Hedge) -> _Running | None:
        """Wait until a job is slow enough to be read a second time; None: there will be none."""
        with self._changed:
            while not self._stopping.is_set():
                waiting = [running for running in self._running if self._can_be_hedged(running)]
                if not waiting:
                    return None
                now_s = time.monotonic()
                due = {
                    running: running.began_s + self._patience_s(hedge, running.job.size_bytes) for running in waiting
                }
                first = min(waiting, key=due.__getitem__)
                if due[first] <= now_s and self._hedging < hedge.at_once:
                    first.hedge_cancel = Cancellation()
                    self._hedging += 1
                    self._hedges += 1
                    return first
                self._changed.wait(max(0.01, due[first] - now_s))
        return None

    @staticmethod
    def _can_be_hedged(running: _Running) -> bool:
        return running.hedge_cancel is None and isinstance(running.job, HedgedJob)

    def _patience_s(self, hedge: Hedge, size_bytes: int) -> float:
        if not self._seconds_per_byte:
            return hedge.after_s
        return max(hedge.after_s, hedge.slower * median(self._seconds_per_byte) * size_bytes)

    def _read_again(self, running: _Running) -> None:
        job, cancel = running.job, running.hedge_cancel
        assert isinstance(job, HedgedJob) and cancel is not None
        found: object = _NOTHING
        try:
            found = job.hedge(cancel)
        except StoreError:
            pass  # the first read goes on, and says what is wrong
        finally:
            with self._changed:
                self._hedging -= 1
                wins = found is not _NOTHING and not running.is_done and not self._stopping.is_set()
                if wins:
                    running.found = found
                self._changed.notify_all()
        if wins:
            job.cancel()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._stopping.set()
            for running in self._running:
                if running.hedge_cancel is not None:
                    running.hedge_cancel.cancel()
                if isinstance(running.job, HedgedJob):
                    running.job.cancel()
            self._changed.notify_all()
