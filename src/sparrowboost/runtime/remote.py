"""Files of remote storage, such as s3://bucket/name: found, listed, read in ranges, uploaded.

pyarrow.fs connects to S3, Google Cloud Storage, Azure and HDFS; fsspec to all others, such as http.
Both find credentials in their own ways. Failures become a RemoteError of one line. What may pass is
tried again, for a limited time.
"""

from __future__ import annotations

import math
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from sparrowboost.runtime.disk import guard_disk, is_remote, output_path, replace_file, replacing
from sparrowboost.runtime.errors import DataError, MissingExtraError, RemoteError
from sparrowboost.runtime.progress import log
from sparrowboost.runtime.temporary import TemporaryFolder

A = TypeVar("A")
Options = Mapping[str, Any] | None  # storage_options

ATTEMPTS = 5  # at a request, with pauses between them that double;
FIRST_PAUSE = 0.25  # seconds
PATIENCE = 20.0  # seconds after which a request is not tried again;
READ_PATIENCE = 60.0  # of a file that was found, and whose bytes are wanted
CONNECT_SECONDS = 4.0
READ_SECONDS = 10.0  # without any byte
SDK_ATTEMPTS = 2  # of AWS's library, at each of ours
UPLOAD_BYTES = 8 << 20  # written at a time
PASSING = 408, 425, 429  # HTTP statuses below 500 that may pass
KEPT_STORAGES = 64  # connections that are kept

S3, GCS, AZURE, HDFS = ("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"), ("hdfs", "viewfs")
HTTP = "http", "https"
S3_ENDPOINTS = "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
S3_REGIONS = "AWS_REGION", "AWS_DEFAULT_REGION"
GOOGLE_METADATA = "metadata.google.internal"
INSTALL = "pip install 'sparrowboost[remote]'"

# What messages of the libraries mean, and what to do.
REFUSED = "check the credentials, which are looked for as by {library} (environment, configuration "
REFUSED += "files, role of the machine), or pass storage_options= (--storage-option), such as "
REFUSED += "anonymous=true for public data"
REASONS = (
    (
        r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist|ContainerNotFound|container does not",
        "there is no such bucket",
        "check its name, and the endpoint",
    ),
    (r"NO_SUCH_UPLOAD|NO_SUCH_KEY", "it is not there any more", "try again"),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|\b301\b|IllegalLocationConstraint",
        "the bucket is in another region",
        "pass region= in storage_options (--storage-option region=...)",
    ),
    (
        r"INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN|SIGNATURE_DOES_NOT_MATCH|MISSING_AUTH|"
        r"ACCESS_DENIED|EXPIRED_TOKEN|ExpiredToken|Unauthorized|Forbidden|PERMISSION_DENIED|"
        r"UNAUTHENTICATED|AuthenticationFailed|AuthorizationFailure|NoAuthenticationInformation|"
        r"[Cc]redential|\b40[13]\b",
        "access is refused",
        REFUSED,
    ),
    (
        r"HTTP status 400.*No response body",
        "the request is refused",
        "check the credentials, the endpoint and the region, or pass anonymous=true in "
        "storage_options (--storage-option) for public data",
    ),
    (
        r"MissingContentLength|NotImplemented|trailing checksum",
        "the server does not know AWS's checksums of uploads",
        "set AWS_REQUEST_CHECKSUM_CALCULATION=when_required in the environment",
    ),
)  # fmt: skip
OUT_OF_REACH = re.compile(
    r"NETWORK_CONNECTION|curl|[Cc]annot connect|[Tt]imeout|timed out|UNAVAILABLE|Disconnected|"
    r"[Cc]onnection|resolve host|Name or service"
)


class Entry(NamedTuple):
    """What storage tells of a name."""

    path: str
    is_folder: bool
    size: int | None
    changed: str  # differs if the contents do: a time or a tag


@dataclass(frozen=True, eq=False)
class Storage:
    """A connection.

    Parameters
    ----------
    name : str
        Of the library's class, for messages.
    arrow : pyarrow.fs.FileSystem
    spec : fsspec.AbstractFileSystem, optional
        What `arrow` wraps, if it is not one of pyarrow's own.
    """

    name: str
    arrow: Any
    spec: Any = None

    def find(self, path: str) -> Entry | None:
        """What is there under a path."""
        if self.spec is not None:
            try:
                return _spec_entry(self.spec.info(path))
            except FileNotFoundError as error:
                # That of the web says so of any failure.
                if getattr(error.__cause__, "status", 404) in (404, 410) and not (
                    isinstance(error.__cause__, OSError | TypeError)
                ):
                    return None
                raise (error.__cause__ or error) from None
        import pyarrow.fs as fs

        info = self.arrow.get_file_info(path)
        return None if info.type == fs.FileType.NotFound else _arrow_entry(info)

    def list(self, folder: str, *, recursive: bool) -> list[Entry]:
        """What is in a folder."""
        if self.spec is not None:
            found = (
                self.spec.find(folder, detail=True).values()
                if recursive
                else self.spec.ls(folder, detail=True)
            )
            return [_spec_entry(info) for info in found]
        import pyarrow.fs as fs

        selector = fs.FileSelector(folder, recursive=recursive, allow_not_found=True)
        return [_arrow_entry(info) for info in self.arrow.get_file_info(selector)]

    def opened(self, path: str) -> Callable[[int, int], Any]:
        """What reads bytes of a file, in any thread: from an offset, so many."""
        if self.spec is not None:
            return lambda offset, n: self.spec.cat_file(path, start=offset, end=offset + n)
        file = self.arrow.open_input_file(path)
        return lambda offset, n: file.read_at(n, offset)


def _arrow_entry(info: Any) -> Entry:
    import pyarrow.fs as fs

    folder = info.type == fs.FileType.Directory
    # Some answers have parts of seconds, others about the same file have not.
    changed = str(info.mtime_ns // 10**9) if info.mtime_ns else ""
    return Entry(info.path, folder, info.size, changed)


def _spec_entry(info: Mapping[str, Any]) -> Entry:
    marks = ("ETag", "etag", "Last-Modified", "last_modified", "LastModified", "mtime", "modified")
    changed = next((str(info[mark]) for mark in marks if info.get(mark)), "")
    return Entry(str(info["name"]), info.get("type") == "directory", info.get("size"), changed)


@dataclass(frozen=True)
class RemotePath:
    """The address of a file or folder, as far as it was looked up.

    Parameters
    ----------
    uri : str
        As messages show it: without passwords and tokens.
    path : str
        Within the storage.
    storage : Storage
    entry : Entry, optional
        What it is, if that is known.
    """

    uri: str
    path: str
    storage: Storage = field(compare=False, repr=False)
    entry: Entry | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.uri

    @property
    def pure(self) -> PurePosixPath:
        return PurePosixPath(urlsplit(self.path).path if "://" in self.path else self.path)

    @property
    def name(self) -> str:
        return self.pure.name

    @property
    def suffix(self) -> str:
        return self.pure.suffix

    @property
    def stem(self) -> str:
        return self.pure.stem

    @property
    def parent(self) -> PurePosixPath:
        return self.pure.parent

    def with_suffix(self, suffix: str) -> PurePosixPath:
        return self.pure.with_suffix(suffix)

    def at(self, entry: Entry) -> RemotePath:
        """Another file of the same storage."""
        path = entry.path
        own, uri = self.path.rstrip("/"), self.uri.rstrip("/")
        head = uri.removesuffix(own) if uri.endswith(own) else ""
        shown = _public(path) if "://" in path else head + path
        return RemotePath(shown, path, self.storage, entry)

    def looked_up(self) -> RemotePath | None:
        """The same with what it is; None if there is nothing."""
        entry = self._ask("be reached", lambda: self.storage.find(self.path))
        return None if entry is None else replace(self, entry=entry)

    def entries(self, *, recursive: bool = False) -> list[Entry]:
        """What is in this folder; not it itself."""
        found = self._ask("be listed", lambda: self.storage.list(self.path, recursive=recursive))
        return [entry for entry in found if entry.path.rstrip("/") != self.path.rstrip("/")]

    def is_bucket_there(self) -> bool:
        """Whether the bucket of this path is there, in storage that has any."""
        bucket = self.path.partition("/")[0]
        if "://" in self.path or not bucket:
            return True
        return self._ask("be reached", lambda: self.storage.find(bucket)) is not None

    @property
    def size(self) -> int:
        size = self.entry.size if self.entry else None
        if size is None:
            raise RemoteError(
                f"{self}: the server does not tell how large it is; download it, and read that."
            )
        return size

    def stamp(self) -> tuple[int | str, ...]:
        """Its size and tag or time of change, as they are now; an OSError if it is gone."""
        now = self.looked_up()
        if now is None or now.entry is None:
            raise FileNotFoundError(2, "it is gone")
        return now.known_stamp

    @property
    def known_stamp(self) -> tuple[int | str, ...]:
        """The same, as they were when it was found."""
        assert self.entry is not None
        return self.size, self.entry.changed

    @cached_property
    def _read(self) -> Callable[[int, int], Any]:
        return self._ask("be opened", lambda: self.storage.opened(self.path))

    def read(self, offset: int, n: int) -> Any:
        """The n bytes at an offset, as a buffer; a RemoteError if they cannot be had."""

        def attempt() -> Any:
            data = self._read(offset, n)
            if len(data) > n:
                raise DataError(
                    f"{self}: the server sends whole files, not parts of them; download it, and "
                    "read that."
                )
            if len(data) < n:
                raise ConnectionError("the connection was closed too early")
            return data

        return self._ask("be read", attempt, READ_PATIENCE)

    def read_all(self, most: int) -> bytes:
        """All bytes; a DataError if there are more than `most`."""
        if self.size > most:
            raise DataError(f"{self}: is too large.")
        return bytes(self.read(0, self.size)) if self.size else b""

    def upload(self, file: Path) -> None:
        """Write a local file here. It appears as a whole, or not at all."""
        import pyarrow.fs as fs

        objects = isinstance(self.storage.arrow, _object_stores(fs))
        there = self.path if objects else f"{self.path}.partial"

        def attempt() -> None:
            with open(file, "rb") as source:
                out = self.storage.arrow.open_output_stream(there, compression=None)
                while piece := source.read(UPLOAD_BYTES):
                    out.write(piece)
                out.close()
            if not objects:
                self.storage.arrow.move(there, self.path)

        # In a thread, which Ctrl-C does not interrupt: Arrow would make an object of what is
        # written when it deletes the stream.
        with ThreadPoolExecutor(1, "sparrow-upload") as pool:
            pool.submit(self._ask, "be written", attempt, math.inf).result()

    def _ask(self, what: str, ask: Callable[[], A], patience: float = PATIENCE) -> A:
        """The answer to a request, which is made again if a failure may pass."""
        start, pause = time.monotonic(), FIRST_PAUSE
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return ask()
            except (DataError, MissingExtraError):
                raise
            except Exception as error:  # of many types: the libraries have their own
                late = time.monotonic() - start + pause > patience
                if attempt == ATTEMPTS or late or not _may_pass(error):
                    raise self.failure(what, error, attempt) from None
                log.debug("%s: attempt %d failed: %s", self, attempt, error)
            time.sleep(pause)
            pause *= 2
        raise AssertionError

    def failure(self, what: str, error: BaseException, attempts: int = 1) -> RemoteError:
        """An error in one line."""
        text = str(error) or type(error).__name__
        short = _shortened(text)
        if isinstance(error, FileNotFoundError):
            return RemoteError(f"{self}: no such file.")
        for pattern, reason, advice in REASONS:
            if re.search(pattern, text):
                advice = advice.format(library=self.storage.name)
                return RemoteError(f"{self}: cannot {what}: {reason} ({short}); {advice}.")
        if isinstance(error, NotImplementedError):
            return RemoteError(f"{self}: cannot {what}: {self.storage.name} cannot do it.")
        if isinstance(error, TypeError) and "argument" in text:
            return RemoteError(f"{self}: {_unknown_option(self.storage.name, error)}")
        tried = f" in {attempts} attempts" if attempts > 1 else ""
        advice = "try again"
        if _is_out_of_reach(error):
            advice = "check the network, and the host or endpoint_override, and try again"
        return RemoteError(f"{self}: cannot {what}{tried} ({short}); {advice}.")


def _object_stores(fs: Any) -> tuple[type, ...]:
    names = ("S3FileSystem", "GcsFileSystem", "AzureFileSystem")
    return tuple(getattr(fs, name) for name in names if hasattr(fs, name))


def _may_pass(error: Exception) -> bool:
    """Whether a request that failed like this may succeed a moment later."""
    settled = FileNotFoundError | PermissionError | NotImplementedError | TypeError | ValueError
    if isinstance(error, settled) and not isinstance(error, ConnectionError):
        return False
    status = re.search(r"HTTP status (\d+)", str(error))
    number = int(status[1]) if status else int(getattr(error, "status", 0) or 0)
    if 400 <= number < 500 and number not in PASSING:
        return False
    return not any(re.search(pattern, str(error)) for pattern, _, _ in REASONS)


def _is_out_of_reach(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}"
    return isinstance(error, TimeoutError | ConnectionError) or bool(OUT_OF_REACH.search(text))


def _shortened(text: str) -> str:
    """The end of a library's message, in which it says why."""
    text = " ".join(text.split())
    told = re.search(r"AWS Error (\w+)(.*?) during (\w+) operation: (.*)", text)
    if told:
        text = f"{told[1]}{told[2]} in {told[3]}: {told[4]}"
    text = re.sub(r"https?://[^\s'\"]*\?[^\s'\"]*", "the address", text)  # may have a token
    return text if len(text) <= 200 else f"{text[:200]}..."


# -- addresses -----------------------------------------------------------------------------------


def remote_path(given: str | os.PathLike[str], storage: Options = None) -> RemotePath:
    """An address as a path of its storage, which is connected to, but not asked for it.

    Parameters
    ----------
    given : str or path
    storage : mapping, optional
        Arguments for the library's class: `pyarrow.fs.S3FileSystem` and others.
    """
    # A Path has made one slash of two.
    text = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)", r"\1//", os.fspath(given))
    scheme, rest = text.partition("://")[0].lower(), text.partition("://")[2]
    options = dict(storage or {})
    host = rest.partition("/")[0]
    if scheme in S3:
        user, _, bucket = host.rpartition("@")
        if user:
            key, _, secret = user.partition(":")
            options = {"access_key": unquote(key), "secret_key": unquote(secret)} | options
        path = rest[len(user) + 1 :] if user else rest
        place = (bucket, *map(os.environ.get, (*S3_ENDPOINTS, *S3_REGIONS)))
        made = _known(scheme, place, options, lambda: _s3(bucket, options))
        return RemotePath(f"{scheme}://{path}", path, _named(text, made))
    if scheme in GCS:
        made = _known(scheme, "", options, lambda: _gcs(options))
        return RemotePath(text, rest, _named(text, made))
    if scheme in AZURE:
        path = rest
        container, at, account = host.partition("@")
        if at:
            path = container + rest[len(host) :]
            options = {"account_name": account.partition(".")[0]} | options
        made = _known(scheme, "", options, lambda: _azure(options))
        return RemotePath(f"{scheme}://{path}", path, _named(text, made))
    if scheme in HDFS:
        made = _known(scheme, host, options, lambda: _hdfs(scheme, host, options))
        return RemotePath(text, rest[len(host) :] or "/", _named(text, made))
    made = _known(scheme, "", options, lambda: _by_fsspec(scheme, options))
    connection = _named(text, made)
    return RemotePath(_public(text), connection.spec._strip_protocol(text), connection)


def of_filesystem(filesystem: Any, path: str) -> RemotePath:
    """A file of one of pyarrow's file systems."""
    storage = Storage(type(filesystem).__name__, filesystem)
    return RemotePath(f"{filesystem.type_name}://{path}", path, storage)


def _public(uri: str) -> str:
    """An address without what may be secret: user, password, query."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


_storages: dict[Any, Storage] = {}
_making = threading.Lock()


def _known(scheme: str, place: Any, options: Mapping[str, Any], make: Callable[[], Storage]) -> Any:
    """The connection that was made before, or a new one; or why there is none."""
    key = scheme, place, tuple(sorted((name, repr(value)) for name, value in options.items()))
    with _making:
        if key not in _storages:
            try:
                storage = make()
            except Exception as error:  # of many types
                return error
            if len(_storages) >= KEPT_STORAGES:
                _storages.clear()
            _storages[key] = storage
        return _storages[key]


def _named(uri: str, made: Storage | Exception) -> Storage:
    """The connection; or an error that names the address."""
    if isinstance(made, Storage):
        return made
    shown = _public(uri)
    if isinstance(made, DataError | MissingExtraError):
        raise type(made)(f"{shown}: {made}") from None
    if isinstance(made, TypeError):
        raise DataError(f"{shown}: {_unknown_option('this storage', made)}") from None
    raise RemotePath(shown, "", Storage("its library", None)).failure("be reached", made)


def _unknown_option(library: str, error: Exception) -> str:
    name = re.search(r"argument '(\w+)'", str(error))
    which = f"the storage option {name[1]!r} is unknown" if name else f"storage options: {error}"
    return f"{which}; those that there are are the arguments of {library}."


def _made(kind: str, make: Callable[[], Any]) -> Storage:
    try:
        return Storage(kind, make())
    except TypeError as error:
        raise DataError(_unknown_option(kind, error)) from None
    except ValueError as error:
        raise DataError(f"the storage options are wrong for pyarrow.fs.{kind} ({error}).") from None


def _class(name: str) -> Any:
    import pyarrow.fs as fs

    if not hasattr(fs, name):
        raise MissingExtraError(f"this pyarrow was built without {name}; install another one.")
    return getattr(fs, name)


def _s3(bucket: str, options: Mapping[str, Any]) -> Storage:
    import pyarrow.fs as fs

    kind = _class("S3FileSystem")
    given = {
        "connect_timeout": CONNECT_SECONDS,
        "request_timeout": READ_SECONDS,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=SDK_ATTEMPTS),
        **options,
    }
    endpoint = urlsplit(next(filter(None, map(os.environ.get, S3_ENDPOINTS)), ""))
    if endpoint.netloc and "endpoint_override" not in options:  # pyarrow does not look there
        given |= {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
    storage = _made("S3FileSystem", lambda: kind(**given))
    if given.keys() & {"region", "endpoint_override"} or any(map(os.environ.get, S3_REGIONS)):
        return storage
    given["region"] = fs.resolve_s3_region(bucket)
    return _made("S3FileSystem", lambda: kind(**given))


def _gcs(options: Mapping[str, Any]) -> Storage:
    from datetime import timedelta

    kind = _class("GcsFileSystem")
    if not options.keys() & {"anonymous", "access_token", "endpoint_override"}:
        _check_google_credentials()
    given = {"retry_time_limit": PATIENCE, **options}
    if isinstance(given["retry_time_limit"], int | float):
        given["retry_time_limit"] = timedelta(seconds=given["retry_time_limit"])
    return _made("GcsFileSystem", lambda: kind(**given))


def _check_google_credentials() -> None:
    """A DataError if there are none: Google's library would look for them for many minutes."""
    folder = os.environ.get("CLOUDSDK_CONFIG") or Path("~/.config/gcloud").expanduser()
    if (
        os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        or Path(folder, "application_default_credentials.json").exists()
    ):
        return
    try:  # a machine of Google's has them there
        socket.create_connection((GOOGLE_METADATA, 80), CONNECT_SECONDS).close()
    except OSError:
        raise DataError(
            "there are no credentials of Google Cloud here; set GOOGLE_APPLICATION_CREDENTIALS, "
            "run `gcloud auth application-default login`, or pass anonymous=true in "
            "storage_options (--storage-option) for public data."
        ) from None


def _azure(options: Mapping[str, Any]) -> Storage:
    kind = _class("AzureFileSystem")
    given = dict(options)
    find = os.environ.get
    account = find("AZURE_STORAGE_ACCOUNT_NAME") or find("AZURE_STORAGE_ACCOUNT")
    key = find("AZURE_STORAGE_ACCOUNT_KEY") or find("AZURE_STORAGE_KEY")
    if "account_name" not in given:
        if not account:
            raise DataError(
                "which storage account? Pass account_name= in storage_options (--storage-option "
                "account_name=...), set AZURE_STORAGE_ACCOUNT_NAME, or write "
                "abfs://container@account.dfs.core.windows.net/path."
            )
        given["account_name"] = account
    if key and not {"account_key", "sas_token", "client_id"} & set(given):
        given["account_key"] = key
    return _made("AzureFileSystem", lambda: kind(**given))


def _hdfs(scheme: str, host: str, options: Mapping[str, Any]) -> Storage:
    kind = _class("HadoopFileSystem")
    user, _, host = host.rpartition("@")
    name, _, port = host.partition(":")
    given = {"port": int(port or 0), **({"user": user} if user else {}), **options}
    where = f"{scheme}://{name}" if scheme == "viewfs" else name or "default"
    try:
        return _made("HadoopFileSystem", lambda: kind(where, **given))
    except OSError as error:
        if "lib" not in str(error):
            raise
        raise DataError(
            f"HDFS needs Hadoop's libhdfs and Java ({_shortened(str(error))}); set JAVA_HOME, "
            "HADOOP_HOME and CLASSPATH as pyarrow's documentation says."
        ) from None


def _by_fsspec(scheme: str, options: Mapping[str, Any]) -> Storage:
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError(f"{scheme}:// is read with fsspec: {INSTALL}") from None
    import pyarrow.fs as fs

    given = dict(options)
    if scheme in HTTP and "client_kwargs" not in given:
        try:
            import aiohttp
        except ImportError:
            raise MissingExtraError(f"{scheme}:// is read with aiohttp: {INSTALL}") from None
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        given["client_kwargs"] = {"timeout": timeout}
    try:
        spec = fsspec.filesystem(scheme, **given)
    except ImportError as error:
        raise MissingExtraError(f"{error}.") from None
    except ValueError:
        raise DataError(
            f"{scheme}:// is not the address of storage that pyarrow or fsspec know; check its "
            "beginning, or download the files."
        ) from None
    return Storage(type(spec).__name__, fs.PyFileSystem(fs.FSSpecHandler(spec)), spec)


# -- output --------------------------------------------------------------------------------------


def output_target(path: str | os.PathLike[str], options: Options = None) -> Path | RemotePath:
    """Where to write a model, predictions or a report: a local path, or one of remote storage.

    An error if that cannot be written to, as far as can be told before any work.
    """
    if not is_remote(path):
        return output_path(path)
    target = remote_path(path, options)
    _check_writable(target)
    return target


def _check_writable(target: RemotePath) -> None:
    """A RemoteError if this cannot be written to, as far as can be told before."""
    if target.uri.startswith(tuple(f"{scheme}://" for scheme in HTTP)):
        raise DataError(f"{target}: http addresses are only read; write to another path.")
    if target.path.endswith("/") or "/" not in target.path:
        raise DataError(f"{target}: is a folder; give the name of a file.")
    if not target.is_bucket_there():
        raise RemoteError(f"{target}: there is no such bucket; make it first, or check its name.")


@contextmanager
def writing(target: Path | RemotePath) -> Iterator[Path]:
    """Give a temporary file to write, which is moved or uploaded to `target` on success.

    If an upload fails, the file is kept, and the error says where.
    """
    if isinstance(target, Path):
        with replacing(target) as partial:
            yield partial
        return
    with TemporaryFolder("upload") as folder:
        file = folder / target.name
        yield file
        try:
            target.upload(file)
        except RemoteError as error:
            number, kept = tempfile.mkstemp(target.suffix, f"{target.stem}-")
            os.close(number)
            os.replace(file, kept)
            raise RemoteError(f"{error} What was to be written is in {kept}.") from None


def write_bytes(target: Path | RemotePath, data: bytes) -> None:
    """Write a file atomically: if anything fails, `target` is what it was before."""
    if isinstance(target, Path):
        replace_file(target, data)
        return
    with writing(target) as file, guard_disk(file, len(data)):
        file.write_bytes(data)
