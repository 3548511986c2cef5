"""The course of one attempt through its steps: the rows of earlier attempts, and the steps that it has asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.claims.context import enclosing, innermost
from retrysafe.claims.step_results import StepResults
from retrysafe.errors import ConfigurationError, OutcomeUnknown
from retrysafe.protocol.steps import DECISION, SLEEP, Aim, At, StepRow, Work, label, read

if TYPE_CHECKING:
    from retrysafe.claims.held_claim import HeldClaim
    from retrysafe.protocol.records import ClaimRequest
    from retrysafe.protocol.requests import Program


class Course:
    """The steps of one attempt, as far as it knows them."""

    def __init__(self, claim: Any, request: ClaimRequest, held: HeldClaim | None) -> None:
        if held is None:
            raise claim._sign(
                ConfigurationError(
                    "A step was asked for in a replay, whose work is done. The block runs on replays too: put its "
                    "steps under 'if not claim.replayed'."
                )
            )
        self.claim, self._held = claim, held
        self.settings = claim._settings
        self._request = request
        self._results: StepResults | None = None
        self.may_have_steps = False
        """True once this attempt has asked for a step, or looked for those of earlier attempts."""
        self.took_over = held.record.attempts > 1
        """True if an earlier attempt at the same work may have left rows."""
        self.rows: dict[At, StepRow] = {}
        self.asked: set[At] = set()
        self.unawaited: dict[At, None] = {}
        """Steps that were made of coroutine functions, and not begun."""
        self.unsure: set[At] = set()
        """Steps whose row may be in the store or not: of the caller's transaction, or of a request that failed."""
        self.broken: set[At] = set()
        """Steps of this attempt that may have happened although they have raised."""
        self.places: dict[str, int] = {}
        """`StepRow.place` by name."""
        self.undos: dict[At, Any] = {}
        """The steps with a compensation."""
        self._loaded = not self.took_over
        self._doubt: OutcomeUnknown | None = None

    @property
    def results(self) -> StepResults:
        """The results of the work's steps; refused in a transactional claim."""
        if self._results is None:
            ownership, record = self._held.ownership, self._held.record
            if ownership.transactional:
                raise self.claim._sign(
                    ConfigurationError(
                        "A transactional claim is one step already: it commits with its effect, as a whole. Steps are "
                        "for effects='keyed' or 'external'; there, a step with tx= has what belongs into a transaction."
                    )
                )
            work = Work(ownership.key, record.created, ownership.clocks.memory, ownership)
            self._results = StepResults(self.settings, work, self._request.scope, self._request.operation)
            self.may_have_steps = True
        return self._results

    @property
    def aim(self) -> Aim:
        """The aim with which a step is asked for."""
        return Aim.REDO if DECISION in self.rows else Aim.DO

    def enlist(self, at: At, *, new: bool = False) -> StepRow | None:
        """Note that a step was asked for; return its row. Refuses a second one of the name, and code that changed."""
        if at in self.asked and at not in self.unsure:
            raise ConfigurationError(
                f"Step {label(at)} was asked for twice: give each of them a name of its own, or each=, an index from "
                "the data."
            )
        place = self.places.setdefault(at.name, len(self.places))
        rows = self.rows.values()
        if (
            not new
            and self.took_over
            and all(row.at.name != at.name or bool(row.at.each) is not bool(at.each) for row in rows)
        ):
            if (other := next((row.at for row in rows if row.at.name == at.name), None)) is not None:
                change = "leave out each=" if at.each else "give each="
                raise ConfigurationError(
                    f"The code has changed since this work began: step {label(at)} was asked for as {label(other)}, "
                    f"and would be done again. Nothing of it was run. Work under way needs it as it was: {change}; if "
                    "it is another step, give it a name of its own and new=True."
                )
            there = next((row for row in rows if row.place == place), None)
            if there is not None and there.at.name not in self.places:
                del self.places[at.name]
                old, slept = there.at.name, there.fingerprint == SLEEP
                renamed = f"If that is its old name, write step({at.name!r}, …, was={old!r}); if it is another step, "
                raise ConfigurationError(
                    f"The code has changed since this work began: step {at.name!r} was not done, and at its place "
                    f"stood {'the sleep' if slept else 'step'} {old!r}. Nothing of it was run. "
                    f"{'For a step that is new, ' if slept else renamed}write new=True."
                )
        self.asked.add(at)
        return self.rows.get(at)

    def mark_unsure(self, at: At) -> None:
        """Let a step be asked for again, and then be read again."""
        self.asked.discard(at)
        self.unsure.add(at)

    def refuse_inside(self, at: At) -> None:
        """Refuse a step inside a step, or outside the claim's block."""
        self.claim._refuse_outside()
        if innermost.get() is self.claim._context:
            return
        around: Any = enclosing()
        if around is not self.claim and getattr(around, "course", None) is self:
            raise ConfigurationError(
                f"Step {label(at)} was asked for inside step {label(around.at)}, which would be done again with it: "
                "put them one after the other."
            )

    def load(self, at: At = DECISION) -> Program[None]:
        """Read the rows of earlier attempts, once; and again for a step that is unsure."""
        if self._loaded and at not in self.unsure:
            return
        self.rows = {row.at: row for row in (yield from read(self.results.store, self.results.work))}
        self.unsure.discard(at)
        self.asked.discard(at)
        self._loaded = True

    def doubt(self, at: At, text: str) -> OutcomeUnknown:
        """The error of a step in doubt; the key is unknown if the work ends by it."""
        self.claim._emit("step_in_doubt", step=label(at), reason=text)
        self._doubt = OutcomeUnknown(text)
        return self._doubt

    def tell(self, event: str, at: At) -> None:
        """Send an event of a step to observers of such details."""
        if self.claim._events.detailed:
            self.claim._emit(event, step=label(at))
