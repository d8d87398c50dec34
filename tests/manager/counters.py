"""Iterators that have a state, as those of Grain do."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["ByteCounter", "Counter", "SharedByteCounter", "SharedCounter"]


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


class SharedCounter(Counter):
    """The numbers index, index + count, index + 2 * count, ... of one of `count` processes."""

    def merge_states(self, states: list[Any]) -> Any:
        return min(state["next"] for state in states)

    def split_state(self, state: Any, process_index: int, process_count: int) -> Any:
        return {"next": state + process_index, "stride": process_count}


class SharedByteCounter(ByteCounter):
    """The same numbers, with states that are bytes."""

    def merge_states(self, states: list[bytes]) -> Any:
        return SharedCounter().merge_states([json.loads(state) for state in states])

    def split_state(self, state: Any, process_index: int, process_count: int) -> bytes:
        split = SharedCounter().split_state(state, process_index, process_count)
        return json.dumps(split).encode()
