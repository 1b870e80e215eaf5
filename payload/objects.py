"""A data set in an object storage, through obstore, which is imported when it is first needed."""

import configparser
import errno
import hashlib
import importlib
import os
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple
from urllib.parse import urlsplit

from .datasets import Entry, Recipe, content

BLOCK = 8 << 20
"""Bytes a request: an object storage answers each after a round trip, so they are larger than a file's."""
PART_BYTES = 5 << 20
"""Bytes of an upload's part; S3 takes none below 5 MiB but the last."""


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


def open_store(where: Bucket, prefix: str, **changes: str) -> Any:
    """An obstore store of everything below a prefix; nothing is asked of the storage yet.

    Args:
        where: the storage.
        prefix: laid before every key, below the storage's own address.
        changes: other credentials, or another ``bucket``, than the storage's.

    Raises:
        MissingError: there is no obstore.
        RefusedError: the credentials are not where they are said to be.
    """
    try:
        store = importlib.import_module("obstore.store")
    except ImportError as error:
        raise MissingError(f"no obstore in this environment (pip install obstore): {error}") from error
    parts = urlsplit(where.uri)
    options: Dict[str, Any] = dict(_credentials(where.credentials), bucket=parts.netloc)
    options.update(changes)
    if where.endpoint:
        options["endpoint"] = where.endpoint
        options["client_options"] = {"allow_http": where.endpoint.startswith("http://")}
    return store.S3Store(
        options.pop("bucket"),
        prefix="/".join(filter(None, (parts.path.strip("/"), prefix))) or None,
        region=where.region or os.environ.get("AWS_REGION", "us-east-1"),
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
        raise RefusedError(errno.EACCES, "no {} in {}".format(" and no ".join(lacking), place))
    token = os.environ.get("AWS_SESSION_TOKEN")
    return dict(found, session_token=token) if token and not where.startswith("file:") else found


def told(error: Exception) -> str:
    """What a storage's error says, on one short line."""
    text = str(error).partition("Debug source")[0]
    code, message = (re.search(f"<{tag}>([^<]*)<", text) for tag in ("Code", "Message"))
    if code is not None:
        return "{}: {}".format(code[1], message[1] if message is not None else "")
    return " ".join(text.split())[-300:]


class ObjectReader:
    """An object, read by ranges."""

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key
        self.size = int(_asked(store.head, key)["size"])

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from ``offset`` on."""
        length = min(len(buffer), self.size - offset)
        if length <= 0:
            return 0
        data = _asked(self._store.get_range, self._key, start=offset, length=length)
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


def _asked(request: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """What a request answers; obstore's errors become an OSError, as every source raises.

    Raises:
        OSError: the storage's error, in its words.
    """
    exceptions = importlib.import_module("obstore.exceptions")
    try:
        return request(*args, **kwargs)
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, f"no such object: {told(error)}") from error
    except exceptions.PermissionDeniedError as error:
        raise PermissionError(errno.EACCES, told(error)) from error
    except exceptions.BaseError as error:
        raise OSError(errno.EIO, told(error)) from error


def _first(store: Any) -> Any:
    return next(iter(store.list()), None)


def reach(store: Any) -> None:
    """Ask the storage for anything, to learn whether it lets us in.

    Raises:
        RefusedError: it does not, with what it says.
    """
    try:
        _asked(_first, store)
    except OSError as error:
        raise RefusedError(errno.EACCES, error.strerror) from error


def upload(recipe: Recipe, store: Any, moved: Callable[[int], None]) -> Tuple[List[Entry], Dict[str, str]]:
    """Make a data set from its seed in the storage, large objects in several parts.

    Returns:
        Its manifest, and each object's ETag.

    Raises:
        OSError: the storage refuses.
    """
    entries, tags = [], {}
    for path, size in recipe.files():
        digest = hashlib.sha256()
        tags[path] = put(store, path, _told_of(content(recipe.seed, path, size), digest, moved), size > PART_BYTES)
        entries.append(Entry(path, size, digest.hexdigest()))
    return sorted(entries), tags


def _told_of(blocks: Iterable[bytes], digest: Any, moved: Callable[[int], None]) -> Iterator[bytes]:
    for data in blocks:
        digest.update(data)
        moved(len(data))
        yield data


def put(store: Any, path: str, blocks: Iterable[bytes], multipart: bool) -> str:
    """Write an object; returns its ETag.

    Raises:
        OSError: the storage refuses.
    """
    return str(_asked(store.put, path, blocks, chunk_size=PART_BYTES, use_multipart=multipart)["e_tag"])


def ranges(store: Any, path: str, spans: Iterable[Tuple[int, int]]) -> List[bytes]:
    """The bytes of an object from ``start`` on, ``length`` of each span.

    Raises:
        OSError: the storage refuses.
    """
    return [bytes(_asked(store.get_range, path, start=start, length=length)) for start, length in spans]


def delete(store: Any) -> None:
    """Remove every object below the store's prefix.

    Raises:
        OSError: the storage refuses.
    """
    for batch in _asked(list, store.list()):
        _asked(store.delete, [item["path"] for item in batch])
