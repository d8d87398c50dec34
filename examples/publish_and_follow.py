"""Policy gradients on a toy task: a trainer, and two samplers in processes of their own.

    python examples/publish_and_follow.py [location] [versions]

The samplers follow the weights that the trainer publishes, play with the newest, and send back what
they saw. The location is a directory; or a bucket, such as s3://bucket/weights.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cordwood import WeightFollower, WeightPublisher

SAMPLERS = 2
ACTIONS = 4
FEATURES = 16
GAMES = 256  # of a sampler with one version
END = -1

# The task: of four actions the one that the largest of the first four features names is right.


class Games(NamedTuple):
    """The games that a sampler played with one version of the weights."""

    version: int
    features: Any  # float32[games, features]
    actions: Any  # int32[games]
    rewards: Any  # float32[games]


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
def loss(weights: dict[str, Any], games: Games) -> Any:
    """Return the loss of policy gradients (REINFORCE) with a baseline."""
    chosen = jax.nn.log_softmax(logits(weights, games.features))
    chosen = jnp.take_along_axis(chosen, games.actions[:, None], axis=1)[:, 0]
    return -jnp.mean(chosen * (games.rewards - games.rewards.mean()))


def as_bfloat16(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the weights that are published: of the trainer's float32 ones, few change."""
    return {name: leaf.astype(jnp.bfloat16) for name, leaf in weights.items()}


def sample(location: str, number: int, pipe: Connection[Any, Any]) -> None:
    """Play with each version that the pipe asks for; a process of its own."""
    rng = np.random.default_rng(number)
    follower = WeightFollower(location, like=jax.eval_shape(lambda: as_bfloat16(new_weights())))
    weights = None
    while (version := pipe.recv()) != END:
        follower.wait_for(version, timeout_seconds=60)
        weights = follower.update(weights)
        features = rng.standard_normal((GAMES, FEATURES), np.float32)
        noise = rng.gumbel(size=(GAMES, ACTIONS))
        actions = np.argmax(np.asarray(logits(weights, features)) + noise, axis=1)
        rewards = (actions == np.argmax(features[:, :ACTIONS], axis=1)).astype(np.float32)
        pipe.send((follower.version, features, actions, rewards))


def train(location: str, versions: int) -> list[float]:
    """Train, and return the mean reward of each version."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(SAMPLERS):
        pipe, other = context.Pipe()
        context.Process(target=sample, args=(location, number, other), daemon=True).start()
        pipes.append(pipe)
    publisher = WeightPublisher(location, full_every=20, keep=5)
    weights, rewards = new_weights(), []
    for version in range(1, versions + 1):
        publisher.publish(version, as_bfloat16(weights))
        for pipe in pipes:
            pipe.send(version)
        some = [Games(*pipe.recv()) for pipe in pipes]
        assert {games.version for games in some} == {version}
        games = Games(
            version, *[np.concatenate(each) for each in list(zip(*some, strict=True))[1:]]
        )
        gradients = jax.grad(loss)(weights, games)
        weights = jax.tree.map(lambda leaf, step: leaf - 2.0 * step, weights, gradients)
        rewards.append(float(games.rewards.mean()))
        if version % 10 == 0 or version == versions:
            print(f"version {version}: mean reward {rewards[-1]:.2f}", flush=True)
    for pipe in pipes:
        pipe.send(END)
        wait([pipe], 10)
    return rewards


def main() -> None:
    location = sys.argv[1] if len(sys.argv) > 1 else "weights"
    versions = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    rewards = train(location, versions)
    print(f"the mean reward grew from {rewards[0]:.2f} to {max(rewards):.2f}")


if __name__ == "__main__":
    main()
