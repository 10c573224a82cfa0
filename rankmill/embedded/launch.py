"""Becomes a server: drops root where asked, ties its life to its parent's, and executes the command.

Run as a file by ``rankmill.embedded.process``, before any of our packages could be reached by another user; so it imports
nothing but the standard library. Arguments: the parent's pid, the signal to receive when the parent dies, the user to
become (or ``-``), a folder that this user must reach (or ``-``), and the command.

On Linux a user without root can't pass through a folder that only root may enter (``/root``, most temporary folders).
There the command keeps one capability, to pass through folders; everywhere else it keeps none.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 8, 28, 47, 2
SECBIT_NO_SETUID_FIXUP = 1 << 2
LINUX_CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SETPCAP = 1, 2, 8
IS_LINUX = sys.platform == "linux"


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def main(arguments: list[str]) -> None:
    """Never returns: this process becomes the command, or exits."""
    parent, death_signal, user, folder, *command = arguments
    if user != "-":
        become(user, reaching=[command[0], *([] if folder == "-" else [folder])])
    if IS_LINUX:  # after the change of user, which clears it
        _prctl(PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != int(parent):  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def become(user: str, *, reaching: list[str]) -> None:
    """Drop root for ``user``, who must reach the paths given."""
    entry = pwd.getpwnam(user)
    if IS_LINUX:
        _prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ["HOME"] = "/"
    if all(os.access(path, os.X_OK) for path in reaching):
        if IS_LINUX:
            _capset(_Set(0, 0, 0))
        return
    if not (IS_LINUX and (_keep(CAP_DAC_READ_SEARCH) or _keep(CAP_DAC_OVERRIDE))):
        sys.exit(f"the user {user} can't reach {' and '.join(reaching)}: open the folders above, or choose others")


def _keep(capability: int) -> bool:
    """Keep one capability across the execution of the command; False where root itself doesn't have it.

    ``initdb`` asks ``access(2)`` whether it may run the programs beside it, and that ignores the capabilities of whoever
    is not root, unless a "secure bit" says otherwise.
    """
    bit = 1 << capability
    both = bit | 1 << CAP_SETPCAP
    return (
        _capset(_Set(both, both, bit))
        and _prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
        and _capset(_Set(bit, bit, bit))
        and _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)
    )


def _capset(low: _Set) -> bool:
    sets = (_Set * 2)(low, _Set(0, 0, 0))
    return bool(_libc().capset(ctypes.byref(_Header(LINUX_CAPABILITY_VERSION_3, 0)), sets) == 0)


def _prctl(*values: int) -> bool:
    numbers = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:5]]
    return bool(_libc().prctl(*numbers) == 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(sys.argv[1:])
