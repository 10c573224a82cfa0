"""The claims that this process holds: added and let go by its task threads, renewed and lost by its heartbeat."""

from __future__ import annotations

from threading import Condition

from core.chunks import ChunkKey, Claim


class Leases:
    """Thread safe. A claim is compared whole: an older epoch of a chunk that was claimed again is not ours."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._claims: dict[ChunkKey, Claim] = {}

    def hold(self, claim: Claim) -> None:
        """From now on the heartbeat renews it."""
        with self._changed:
            self._claims[claim.key] = claim
            self._changed.notify_all()

    def let_go(self, claim: Claim) -> bool:
        """Stop renewing it; whether it was still ours. Letting go twice is fine."""
        with self._changed:
            if not self.is_ours(claim):
                return False
            del self._claims[claim.key]
            self._changed.notify_all()
            return True

    def is_ours(self, claim: Claim) -> bool:
        """Whether we still believe so; only the fence in the ledger knows."""
        return self._claims.get(claim.key) == claim

    def wait_while_ours(self, claim: Claim, *, seconds: float) -> None:
        """Wait so long, or until the claim is not ours any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self.is_ours(claim), timeout=seconds)

    def held(self) -> list[Claim]:
        """All of them now."""
        with self._changed:
            return list(self._claims.values())
