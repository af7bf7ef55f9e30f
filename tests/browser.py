"""A headless Chromium that a test drives: opens a page and evaluates expressions in it, over the DevTools protocol."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from page_ground import need_chromium

STUCK_S = 300.0


class Page:
    """One tab."""

    def __init__(self, socket: Any, session: str) -> None:
        self._socket, self._session = socket, session
        self._sent = 0
        self.errors: list[str] = []
        """What the console and the page's policy complained about."""

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        while True:
            answer = await self._socket.receive_json(timeout=STUCK_S)
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                return dict(answer.get("result", {}))
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Log.entryAdded":
            self.errors.append(str(event["params"]["entry"].get("text")))
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))

    async def value(self, expression: str) -> Any:
        """Return what an expression gives in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait_for(self, expression: str, timeout_s: float = STUCK_S) -> Any:
        """Return the first true value of an expression."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while not (found := await self.value(expression)):
            assert loop.time() < give_up_at, (
                f"waited {timeout_s:g} s for {expression}: {await self.value('document.body.innerText')}"
            )
            await asyncio.sleep(0.1)
        return found


@asynccontextmanager
async def opened(url: str, width: int = 1000) -> AsyncIterator[Page]:
    """Open a page in a browser of its own."""
    import aiohttp

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [need_chromium(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        argv += ["--remote-debugging-port=0", f"--window-size={width},900", "about:blank"]
        browser = await asyncio.create_subprocess_exec(
            *argv, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            assert browser.stderr is not None
            address = ""
            while "ws://" not in address:
                address = (await asyncio.wait_for(browser.stderr.readline(), STUCK_S)).decode()
                assert address, "the browser ended"
            drain = asyncio.create_task(browser.stderr.read())
            where = address[address.index("ws://") :].strip()
            async with aiohttp.ClientSession() as session, session.ws_connect(where, max_msg_size=0) as socket:
                root = Page(socket, "")
                target = (await root.call("Target.createTarget", url="about:blank"))["targetId"]
                attached = await root.call("Target.attachToTarget", targetId=target, flatten=True)
                page = Page(socket, attached["sessionId"])
                page._sent = 1000
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                yield page
        finally:
            if browser.returncode is None:
                browser.terminate()
            try:
                await asyncio.wait_for(browser.wait(), STUCK_S)
            except asyncio.TimeoutError:
                browser.kill()
                await browser.wait()
            await drain
