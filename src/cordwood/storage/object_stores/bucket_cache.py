"""The buckets that a process has opened, with the options and the experience of their stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from cordwood.storage.locations import Url
from cordwood.storage.object_stores.open_bucket import OpenBucket, open_bucket

_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "STORAGE_EMULATOR_HOST", "CORDWOOD_STALL_SECONDS")
BucketOptions: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]  # by scheme and bucket
_Environment: TypeAlias = tuple[tuple[str, str], ...]  # the variables that matter


class StoreExperience:
    """The experience of this process with a store: what its answers have shown.

    Attributes:
        has_answered: True if the store has answered; False again after a silence.
        lists_objects: True if an empty listing is to be believed: it is no web page.
        takes_bare_tags: True if it takes the tag of a condition without its quotes only.
        has_conditions: True if it has passed the test of conditional writes.
        odd_keys: the keys that are passed over, and that a warning has named.
    """

    def __init__(self) -> None:
        self.has_answered = False
        self.lists_objects = False
        self.takes_bare_tags = False
        self.has_conditions = False
        self.odd_keys: set[str] = set()


class BucketCache:
    """The open buckets of a process, and the options that the program has set for them.

    All calls share an open bucket, because its clients hold the connections. It is opened anew once
    its options, or the variables of the environment, have changed; running calls go on with the one
    that they have. The experience with a store outlives that, as it is the same store.
    """

    def __init__(self) -> None:
        self._options: dict[tuple[str, str], Mapping[str, Any]] = {}  # by scheme and bucket
        self._opened: dict[tuple[str, str], tuple[_Environment, OpenBucket]] = {}
        self._experience: dict[str, StoreExperience] = {}  # by `OpenBucket.where`

    def set_options(self, url: Url, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Set the options of a bucket; None: there are none. Return the options before."""
        key = (url.scheme, url.bucket)
        before = self._options.pop(key, None)
        if options is not None:
            self._options[key] = options
        self._opened.pop(key, None)
        return before

    def options(self) -> BucketOptions:
        """Return the options of all buckets, for another process."""
        return dict(self._options)

    def use_options(self, options: BucketOptions) -> None:
        """Set the options of another process, without effect on buckets whose options are these."""
        for (scheme, bucket), each in options.items():
            if self._options.get((scheme, bucket)) != each:
                self.set_options(Url(scheme, bucket, ""), each)

    def open(self, url: Url) -> OpenBucket:
        """Return the bucket of a URL; a bucket at Amazon may cost a request for its region.

        Raises UnsupportedFormatError for options that it does not know, or a profile without boto3.
        """
        key, environment = (url.scheme, url.bucket), _environment()
        opened = self._opened.get(key)
        if opened is None or opened[0] != environment:
            opened = environment, open_bucket(url, self._options.get(key, {}))
            self._opened[key] = opened
        return opened[1]

    def experience_with(self, bucket: OpenBucket) -> StoreExperience:
        """Return what this process has learned of the store of a bucket."""
        return self._experience.setdefault(bucket.where, StoreExperience())


def _environment() -> _Environment:
    return tuple([(k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES)])


BUCKETS = BucketCache()  # of this process
