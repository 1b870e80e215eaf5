"""A data set in an object storage, through obstore, which is imported when it is first needed."""

import configparser
import errno
import importlib
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from .datasets import Entry, Recipe, content

BLOCK = 8 << 20
"""Bytes a request: an object storage answers each after a round trip, so they are larger than a file's."""
PART_BYTES = 5 << 20
"""Bytes of an upload's part; S3 takes none below 5 MiB but the last."""

_REFUSALS = ("UnauthenticatedError", "PermissionDeniedError")


class MissingError(RuntimeError):
    """There is no obstore in this environment."""


class RefusedError(OSError):
    """The storage let us not in: wrong credentials, no such bucket, no answer."""


class Bucket(NamedTuple):
    """Where a data set's objects are, as a profile's storage says it: ``credentials`` is ``env`` or ``file:PATH``."""

    uri: str
    endpoint: str
    region: str
    credentials: str


def open_store(bucket: Bucket, prefix: str, **changes: str) -> Any:
    """An obstore store of everything below a prefix; nothing is asked of the storage yet.

    Args:
        bucket: the storage.
        prefix: laid before every key, below the storage's own address.
        changes: other credentials, or another ``bucket``, than the storage's.

    Raises:
        MissingError: there is no obstore.
        RefusedError: the credentials are not where they are said to be.
    """
    try:
        store = importlib.import_module("obstore.store")
    except ImportError as error:
        raise MissingError("no obstore in this environment (pip install obstore): %s" % error) from error
    parts = urlsplit(bucket.uri)
    options: Dict[str, Any] = dict(_credentials(bucket.credentials), bucket=parts.netloc)
    options.update(changes)
    if bucket.endpoint:
        options["endpoint"] = bucket.endpoint
        options["client_options"] = {"allow_http": bucket.endpoint.startswith("http://")}
    return store.S3Store(
        options.pop("bucket"),
        prefix="/".join(filter(None, (parts.path.strip("/"), prefix))) or None,
        region=bucket.region or os.environ.get("AWS_REGION", "us-east-1"),
        retry_config={"max_retries": 2},
        **options,
    )


def _credentials(where: str) -> Dict[str, str]:
    """The key and the secret, from the environment or from a file like ~/.aws/credentials."""
    if not where.startswith("file:"):
        # A secret of Kubernetes reaches a pod in its environment too.
        found = {name: os.environ.get("AWS_" + name.upper(), "") for name in ("access_key_id", "secret_access_key")}
        place = "the environment"
    else:
        place = os.path.expanduser(where[len("file:") :])
        parser = configparser.ConfigParser()
        parser.read(place)
        section = os.environ.get("AWS_PROFILE", "default")
        values = parser[section] if parser.has_section(section) else {}
        found = {name: values.get("aws_" + name, "") for name in ("access_key_id", "secret_access_key")}
    lacking = sorted(name for name, value in found.items() if not value)
    if lacking:
        raise RefusedError(errno.EACCES, "no %s in %s" % (" and no ".join(lacking), place))
    token = os.environ.get("AWS_SESSION_TOKEN")
    return dict(found, session_token=token) if token and not where.startswith("file:") else found


def refusal(error: Exception) -> Optional[str]:
    """What a storage's error means in words, where it is about access; None for any other."""
    kind = type(error).__name__
    said = " ".join(str(error).split())[:300]
    if kind in _REFUSALS or "AccessDenied" in said or "InvalidAccessKeyId" in said or "SignatureDoesNot" in said:
        return "the credentials are refused: %s" % said
    if "NoSuchBucket" in said:
        return "there is no such bucket: %s" % said
    if kind == "GenericError":
        return "no answer: %s" % said
    return None


class ObjectReader:
    """An object, read by ranges."""

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key
        self.size = int(_asked(lambda: store.head(key))["size"])

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` on."""
        length = min(len(buffer), self.size - offset)
        if length <= 0:
            return 0
        data = _asked(lambda: self._store.get_range(self._key, start=offset, length=length))
        buffer[: len(data)] = memoryview(data)
        return len(data)

    def close(self) -> None:
        """Nothing is held between two requests."""


class Objects:
    """A data set as objects."""

    block = BLOCK

    def __init__(self, store: Any) -> None:
        self._store = store

    def open(self, path: str) -> ObjectReader:
        """Open an object by its path in the data set."""
        return ObjectReader(self._store, path)


def _asked(request: Callable[[], Any]) -> Any:
    """What a request answers; obstore's errors become an OSError, as every source raises.

    Raises:
        RefusedError: the storage does not let us in.
        OSError: anything else that it says.
    """
    try:
        return request()
    except _errors() as error:
        why = refusal(error)
        if why is not None:
            raise RefusedError(errno.EACCES, why) from error
        if type(error).__name__ == "NotFoundError" or isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "no such object: %s" % str(error)[:200]) from error
        raise OSError(errno.EIO, str(error)[:300]) from error


def _errors() -> Tuple[type, ...]:
    exceptions = importlib.import_module("obstore.exceptions")
    return (exceptions.BaseError, FileNotFoundError, PermissionError)


def reach(store: Any) -> None:
    """Ask the storage for anything, to learn whether it lets us in.

    Raises:
        OSError: it does not.
    """

    def first() -> None:
        for _ in store.list():
            break

    _asked(first)


def upload(recipe: Recipe, store: Any, moved: Callable[[int], None]) -> Tuple[List[Entry], Dict[str, str]]:
    """Make a data set from its seed in the storage, large objects in several parts.

    Returns:
        Its manifest, and each object's ETag.

    Raises:
        OSError: the storage refuses.
    """
    import hashlib  # noqa: PLC0415

    entries, tags = [], {}
    for path, size in recipe.files():
        digest = hashlib.sha256()

        def blocks(path: str = path, size: int = size, digest: Any = digest) -> Any:
            for data in content(recipe.seed, path, size):
                digest.update(data)
                moved(len(data))
                yield data

        put = _asked(lambda: store.put(path, blocks(), chunk_size=PART_BYTES, use_multipart=size > PART_BYTES))
        entries.append(Entry(path, size, digest.hexdigest()))
        tags[path] = str(put["e_tag"])
    return sorted(entries), tags


def delete(store: Any) -> None:
    """Remove every object below the store's prefix.

    Raises:
        OSError: the storage refuses.
    """
    for batch in _asked(lambda: list(store.list())):
        _asked(lambda batch=batch: store.delete([item["path"] for item in batch]))
