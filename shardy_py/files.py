"""Files: one function writes them all, atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Replaces the content of a file at once: until it has been written as a whole, the old one stays.

    The content goes to a new file in the same folder, which then takes the place of the old one, with its mode and owner. A link is
    followed to its target. A device or a pipe, which is no regular file, is written into. Raises OSError if it cannot be written.

    Args:
        content: Bytes, or a text that becomes UTF-8.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        target = os.path.realpath(path)
        try:
            old = os.stat(target)
        except FileNotFoundError:
            old = None
        if old is None or stat.S_ISREG(old.st_mode):
            _replace(target, old, data)
        else:
            with open(target, "wb") as file:
                file.write(data)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None


def _replace(target: str, old: os.stat_result | None, data: bytes) -> None:
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # renaming would not ask the file, only its folder
    folder = os.path.dirname(target)
    # Nobody can foresee the name, and O_EXCL neither follows a link nor takes a file that is there; the kernel applies the umask.
    part = os.path.join(folder, f".shardy_py-{secrets.token_hex(16)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if old is not None:
                _take_over(file.fileno(), part, old)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    _sync_folder(folder)


def _take_over(descriptor: int, part: str, old: os.stat_result) -> None:
    """Gives a new file the owner and the mode of the one that it replaces."""
    own = os.fstat(descriptor)
    if hasattr(os, "fchown") and (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.fchown(descriptor, old.st_uid, old.st_gid)
    os.chmod(part, stat.S_IMODE(old.st_mode))


def _sync_folder(folder: str) -> None:
    """Makes a renaming survive a power failure, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
