"""Detect network file systems, on which two hosts would corrupt a write-ahead log."""

from __future__ import annotations

import re

# The index of the WAL is memory that all processes with the open file share, so they must run under one kernel. 9p and
# virtiofs are allowed: they lead to the host of a virtual machine, and under gVisor the root file system is 9p.
_NETWORK = re.compile(
    r"(fuse\.)?"
    r"(afp|afs|beegfs|blobfuse2?|ceph(-fuse|fs)?|cifs|coda|davfs2?|gcsfuse|gfs2|glusterfs|goofys|gpfs|juicefs|lizardfs"
    r"|lustre|moosefs|mount(point)?-s3|ncpfs|nfs4?|ocfs2|orangefs|pvfs2|rclone|s3fs|seaweedfs|smb\w*|sshfs)"
)


def network_file_system(path: str, mounts: str | None = None) -> str | None:
    """The kind of network file system that holds ``path``; None if the path is on a local or unknown file system.

    ``mounts``: a text in the format of /proc/self/mountinfo.
    """
    kind, depth = "", -1
    for line in (_mounts() if mounts is None else mounts).splitlines():
        place, _, source = line.partition(" - ")
        point = _unescape(place.split()[4])
        # A later mount on the same mount point hides the earlier mount.
        if _contains(point, path) and len(point) >= depth:
            kind, depth = source.split()[0], len(point)
    return kind if _NETWORK.fullmatch(kind) else None


def _mounts() -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
            return table.read()
    except OSError:
        return ""


def _contains(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)
