"""Policy gradients on a toy task: a trainer, and two samplers in processes of their own.

    python examples/publish_and_follow.py                       through the directory "weights"
    python examples/publish_and_follow.py s3://bucket/weights   through a bucket
    python examples/publish_and_follow.py serve:weights         the samplers read it by HTTP

The samplers follow the weights that the trainer publishes, play with the newest, and send back what
they saw. With several places it trains anew by way of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import cordwood as cw

SAMPLERS = 2
ACTIONS = 4
FEATURES = 16
GAMES = 256  # of a sampler with one version
SERVE = "serve:"
END = None

# The task: of four actions the one that the largest of the first four features names is right.


class Games(NamedTuple):
    """The games that a sampler played with one version of the weights."""

    features: Any  # float32[games, features]
    actions: Any  # int32[games]
    rewards: Any  # float32[games]


class Source(NamedTuple):
    """The place that a sampler follows."""

    location: str
    token: str = ""  # of a server


class Request(NamedTuple):
    """The version to play with."""

    source: Source
    version: int


def new_weights() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(first, (FEATURES, 256)) * 0.1,
        "actions": jax.random.normal(second, (256, ACTIONS)) * 0.1,
    }


def logits(weights: dict[str, Any], features: Any) -> Any:
    hidden = jax.nn.relu(features @ weights["hidden"].astype(jnp.float32))
    return hidden @ weights["actions"].astype(jnp.float32)


@jax.jit
@jax.grad
def gradient(weights: dict[str, Any], games: Games) -> Any:
    """Return the gradient of policy gradients (REINFORCE) with a baseline."""
    chosen = jax.nn.log_softmax(logits(weights, games.features))
    chosen = jnp.take_along_axis(chosen, games.actions[:, None], axis=1)[:, 0]
    return -jnp.mean(chosen * (games.rewards - games.rewards.mean()))


def as_bfloat16(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the weights that are published: of the trainer's float32 ones, few change."""
    return {name: leaf.astype(jnp.bfloat16) for name, leaf in weights.items()}


def follow(source: Source) -> cw.WeightFollower:
    if source.token:
        headers = {"authorization": f"Bearer {source.token}"}
        cw.storage_options(source.location, client_options={"default_headers": headers})
    return cw.WeightFollower(source.location)


def sample(number: int, pipe: Connection[Any, Any]) -> None:
    """Play with each version that the pipe asks for; a process of its own."""
    rng = np.random.default_rng(number)
    followers: dict[Source, cw.WeightFollower] = {}
    while (request := pipe.recv()) is not END:
        if request.source not in followers:
            followers[request.source] = follow(request.source)
        follower = followers[request.source]
        follower.wait_for(request.version, timeout_seconds=60)
        weights = follower.update()
        features = rng.standard_normal((GAMES, FEATURES), np.float32)
        noise = rng.gumbel(size=(GAMES, ACTIONS))
        actions = np.argmax(np.asarray(logits(weights, features)) + noise, axis=1)
        rewards = (actions == np.argmax(features[:, :ACTIONS], axis=1)).astype(np.float32)
        pipe.send((follower.version, Games(features, actions, rewards)))


def started_samplers() -> list[Connection[Any, Any]]:
    """Start the samplers; return a pipe to each."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(SAMPLERS):
        pipe, other = context.Pipe()
        context.Process(target=sample, args=(number, other), daemon=True).start()
        pipes.append(pipe)
    return pipes


@contextmanager
def served(folder: str) -> Iterator[Source]:
    """Let the samplers read a directory by HTTP."""
    command = [sys.executable, "-m", "cordwood", "serve", folder, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield printed_source(process)
        finally:
            process.terminate()


def printed_source(process: subprocess.Popen[str]) -> Source:
    """Return the address that a server prints when it is ready, as a JSON object of some lines."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            answer = json.loads(text)
            return Source(answer["url"], answer["token"])
    raise RuntimeError(f"the server ended with status {process.wait()}; its error is above")


def train(place: str, versions: int, pipes: Sequence[Connection[Any, Any]]) -> None:
    """Train by way of a directory, a bucket, or a directory that is served."""
    folder = place.removeprefix(SERVE)
    with ExitStack() as stack:
        source = Source(place)
        if place.startswith(SERVE):
            os.makedirs(folder, exist_ok=True)
            source = stack.enter_context(served(folder))
        publisher = cw.WeightPublisher(folder, full_every=20, keep=5)
        weights, rewards = new_weights(), []
        for version in range(1, versions + 1):
            publisher.publish(version, as_bfloat16(weights))
            for pipe in pipes:
                pipe.send(Request(source, version))
            answers = [pipe.recv() for pipe in pipes]
            assert {number for number, _ in answers} == {version}
            games = jax.tree.map(lambda *each: np.concatenate(each), *[each for _, each in answers])
            step = gradient(weights, games)
            weights = jax.tree.map(lambda leaf, change: leaf - 2.0 * change, weights, step)
            rewards.append(float(games.rewards.mean()))
        print(f"{place}: the mean reward grew from {rewards[0]:.2f} to {rewards[-1]:.2f}")
        assert versions < 4 or rewards[-1] > rewards[0] + 0.1, "the samplers did not improve"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="*", default=["weights"])
    parser.add_argument("--versions", type=int, default=30)
    arguments = parser.parse_args()
    pipes = started_samplers()
    for place in arguments.places:
        train(place, arguments.versions, pipes)
    for pipe in pipes:
        pipe.send(END)


if __name__ == "__main__":
    main()
