"""Iterators that have a state, as those of Grain do."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["ByteCounter", "Counter"]


class Counter:
    """An iterator whose state is a dict, as those of Grain's datasets are."""

    def __init__(self, start: int = 0, stride: int = 1) -> None:
        self.next, self.stride = start, stride

    def __next__(self) -> int:
        self.next += self.stride
        return self.next - self.stride

    def get_state(self) -> dict[str, Any]:
        return {"next": self.next, "stride": self.stride}

    def set_state(self, state: dict[str, Any]) -> None:
        self.next, self.stride = state["next"], state["stride"]


class ByteCounter(Counter):
    """One whose state is bytes, as those of Grain's data loaders are."""

    def get_state(self) -> Any:
        return json.dumps(super().get_state()).encode()

    def set_state(self, state: Any) -> None:
        super().set_state(json.loads(state))
