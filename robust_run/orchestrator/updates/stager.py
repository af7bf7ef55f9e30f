"""One member's launcher, told to put a version in place, and watched until it is known what became of it.

It is asked as `robust update` asks any job, beside the event loop; a launcher that does not answer yet is asked again. All of
this can be begun anew at any time: what is there already is found by its name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

import msgspec

from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.code_events import CodeRecord, CodeVersion, Ledger
from robust_run.launcher.operator.code.remote import MovedError, Versions
from robust_run.launcher.operator.reading.client import SaysNoError, reach, this_machine
from robust_run.launcher.operator.views.code_words import RollbackWish, UpdateWish
from robust_run.orchestrator.model.update_words import CodeFate, Fate, UpdateMember

LOOK_S = 0.5
FINAL: tuple[Fate, ...] = ("trusted", "rolled_back", "refused")


def mark(role: str, version: CodeVersion) -> str:
    """Return how a version of a role is called in the ledger of a member."""
    return f"version {version.number} of {role}"


def found_in(ledger: Ledger, role: str, version: CodeVersion) -> CodeRecord | None:
    """Return the newest record of a role's version in a member's ledger: by its name, else by what it holds. Pure."""
    name = mark(role, version)
    named = [each for each in ledger.records if each.version.summary.partition(":")[0] == name]
    same = [
        each for each in ledger.records if _content(each.version) == _content(version) and each.fate != "rolled_back"
    ]
    found = named or same
    return found[-1] if found else None


def _content(version: CodeVersion) -> tuple[str, dict[str, str], dict[str, str]]:
    return version.tree, version.settings, version.env


def fate_of(ledger: Ledger, record: CodeRecord) -> Fate:
    """Return what became of a record. Pure. One that was trusted, and does not run, is as good as none: "" """
    if record.fate == "trusted" and ledger.running != record.version.number:
        return ""
    return "rolled_back" if record.fate == "rolled_back" else "" if record.fate == "merged" else record.fate


class Stager:
    """Of the launchers on one node. `tell`: takes in what becomes of versions."""

    def __init__(self, folder: str, env: Mapping[str, str], tell: Callable[[CodeFate], None]) -> None:
        """`folder`: of the members' run directories."""
        self._folder, self._env, self._tell = folder, env, tell
        self._watched: dict[str, asyncio.Task[None]] = {}

    def order(self, run: str, order: UpdateMember) -> None:
        """Have a launcher put a version in place; an earlier order is void."""
        self.over(run)
        self._watched[run] = asyncio.ensure_future(self._watch(run, order))

    def over(self, run: str) -> None:
        """The launcher has ended."""
        task = self._watched.pop(run, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Watch nothing any more."""
        for run in list(self._watched):
            self.over(run)

    async def _watch(self, run: str, order: UpdateMember) -> None:
        told: tuple[Fate, bool] = ("", False)
        acted: bool | None = None
        while told[0] not in FINAL:
            fate, why = told[0], ""
            try:
                fate, why, did = await asyncio.to_thread(self._look, run, order, may_act=acted is None)
                acted = did if acted is None else acted
            except SaysNoError as error:
                fate, why = "refused", str(error)
            except (PlatformError, MovedError, OSError):
                pass  # it does not answer now; if it has ended, that is heard
            except RobustRunError as error:
                fate, why = "refused", str(error)
            begins = bool(acted) and order.now
            if (fate, begins) != told:
                told = (fate, begins)
                number = order.version.number
                self._tell(
                    CodeFate(member=order.member, serial=order.serial, number=number, fate=fate, why=why, begins=begins)
                )
            await asyncio.sleep(LOOK_S)

    def _look(self, run: str, order: UpdateMember, *, may_act: bool) -> tuple[Fate, str, bool]:
        """Do what is not done yet; return how the version stands, and whether workers begin anew. In a thread of its own."""
        versions = Versions(reach(os.path.join(self._folder, run), "", "", self._env, this_machine()), "")
        ledger = versions.view().code
        if not ledger.records:
            raise PlatformError("its code is not captured yet")
        record = found_in(ledger, order.member.role, order.version)
        fate = fate_of(ledger, record) if record is not None else ""
        why = record.why if record is not None else ""
        if not may_act:
            return fate, why, False
        if fate == "trusted" and ledger.pending:
            versions.roll_back(RollbackWish(reason="the role goes on with what runs", by="robust-run"))
        elif record is not None and fate == "" and record.fate == "trusted":
            versions.roll_back(RollbackWish(to=record.version.number, reason="its role goes back", by="robust-run"))
            return "pending", "", True
        elif fate == "" or (fate == "pending" and order.now):
            versions.stage(UpdateWish(version=self._made(ledger, order, record if fate else None), now=order.now))
            return "pending", "", True
        return fate, why, False

    @staticmethod
    def _made(ledger: Ledger, order: UpdateMember, pending: CodeRecord | None) -> CodeVersion:
        """Return the version in the numbers of a member's ledger."""
        if pending is not None:
            return pending.version
        version = order.version
        summary = f"{mark(order.member.role, version)}: {version.summary}"
        return msgspec.structs.replace(
            version,
            number=len(ledger.records) + 1,
            parents=(queries.head(ledger),),
            taken="",
            summary=summary,
            again=True,  # whether the role may have it is decided for the role
        )
