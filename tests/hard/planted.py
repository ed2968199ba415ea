"""Files that another user of a shared folder could plant under the names of the scratch files of an output."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybrid_cli import storage
from hybrid_cli.artifacts.output import KEY
from hybrid_cli.storage import disk, files, layout

STRANGER = 12345  # user id
EXECUTED = "executed"  # folder that hostile code makes


class Code:
    """An object whose pickle makes a folder when it is loaded without restrictions."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (EXECUTED,)


def link_scratch(output: Path, victim: Path) -> None:
    """Plant a link to a folder that looks like an interrupted call."""
    scratch = files.scratch_path(output)
    _move(scratch, victim / "folder")
    scratch.symlink_to(victim.absolute() / "folder")


def link_contents(output: Path, victim: Path) -> None:
    scratch = _folder(files.scratch_path(output))
    for number, file in enumerate(sorted(scratch.rglob("*"))):
        if file.is_file() and file.name != KEY:
            shutil.move(file, victim / str(number))
            file.symlink_to(victim.absolute() / str(number))
    for name in (layout.WEIGHTS, layout.FAISS_INDEX, layout.DOCIDS, layout.CONTRACT, layout.CURVE):
        if not (scratch / name).exists():
            (scratch / name).symlink_to(victim.absolute() / "notes.txt")


def link_folders(output: Path, victim: Path) -> None:
    scratch = _folder(files.scratch_path(output))
    for name in (layout.LUCENE, layout.VECTORS, layout.CHECKPOINT, layout.IMPACTS, layout.SCORES):
        if (scratch / name).is_dir():
            _move(scratch / name, victim / name)
        (victim / name).mkdir(exist_ok=True)
        (victim / name / "notes.txt").write_text("notes")
        (scratch / name).symlink_to(victim.absolute() / name)


def hostile_checkpoint(output: Path, victim: Path) -> None:
    """Plant code in the checkpoint of an interrupted training, with its checksum."""
    scratch = _folder(files.scratch_path(output))
    folder = _folder(scratch / layout.CHECKPOINT)
    (folder / layout.OPTIMIZER).write_bytes(pickle.dumps(Code()))
    (folder / layout.CHECKSUM).write_text(storage.hash_folder(folder, (layout.CHECKSUM,)))


def of_stranger(output: Path, victim: Path) -> None:
    """Plant an interrupted call of another user, with code in its checkpoint."""
    hostile_checkpoint(output, victim)
    _give_away(files.scratch_path(output))


def finished_by_stranger(output: Path, victim: Path) -> None:
    """Plant a folder with a manifest that lists files outside of it."""
    scratch = _folder(files.scratch_path(output))
    disk.remove(scratch / KEY)
    listed = ["../../victim/notes.txt", "/etc/hostname"]
    fields = {"kind": "run", "stage": "fuse", "options": {}, "inputs": {}, "files": listed, "checksums": {}}
    (scratch / storage.MANIFEST).write_text(json.dumps(fields))
    _give_away(scratch)


def lock_of_stranger(output: Path, victim: Path) -> None:
    lock = _lock(output)
    lock.write_text("1\nhost\n")
    _give_away(lock)


def old_of_stranger(output: Path, victim: Path) -> None:
    old = _folder(_old(output))
    (old / "notes.txt").write_text("notes")
    _give_away(old)


def _linked(path: Path, target: Path) -> None:
    disk.remove(path)
    path.symlink_to(target.absolute())


Plant = Callable[[Path, Path], object]
PLANTS: dict[str, Plant] = {
    "link of the scratch folder": link_scratch,
    "link of the scratch folder to a file": lambda out, victim: _linked(files.scratch_path(out), victim / "notes.txt"),
    "links of files": link_contents,
    "links of folders": link_folders,
    "code in a checkpoint": hostile_checkpoint,
    "scratch folder of a stranger": of_stranger,
    "finished by a stranger": finished_by_stranger,
    "link of the lock": lambda out, victim: _linked(_lock(out), victim / "notes.txt"),
    "link of the lock to nothing": lambda out, victim: _linked(_lock(out), victim / "new.txt"),
    "hard link of the lock": lambda out, victim: os.link(victim / "notes.txt", _lock(out)),
    "lock is a folder": lambda out, victim: _lock(out).mkdir(),
    "lock is a pipe": lambda out, victim: os.mkfifo(_lock(out)),
    "lock of a stranger": lock_of_stranger,
    "link of the old folder": lambda out, victim: _linked(_old(out), victim),
    "link of the old folder to a file": lambda out, victim: _linked(_old(out), victim / "notes.txt"),
    "old folder of a stranger": old_of_stranger,
}


@contextmanager
def planted(output: Path, plant: str) -> Iterator[None]:
    """Plant files while the block runs; check that nothing outside changed, and that no code was executed.

    Args:
        output: an output; the scratch files of an interrupted call may be next to it.
        plant: name in `PLANTS`.
    """
    victim = Path("victim")
    victim.mkdir()
    (victim / "notes.txt").write_text("notes")
    PLANTS[plant](output, victim)
    before = _contents(victim)
    try:
        yield
        assert _contents(victim) == before, f"{plant}: files outside of the output changed"
        assert not Path(EXECUTED).exists(), f"{plant}: code was executed"
    finally:
        for path in [victim, Path(EXECUTED), *output.parent.glob(f".{output.name}.*")]:
            disk.remove(path)


def _contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = [folder, *sorted(folder.rglob("*"))]
    found = [(path, path.lstat(), path.read_bytes() if path.is_file() else b"") for path in paths]
    return {str(path): (status.st_mode, status.st_mtime_ns, content) for path, status, content in found}


def _folder(path: Path) -> Path:
    if path.is_symlink() or not path.is_dir():
        disk.remove(path)
        path.mkdir(parents=True)
    return path


def _move(source: Path, target: Path) -> None:
    shutil.move(_folder(source), target)


def _lock(output: Path) -> Path:
    disk.remove(files.lock_file(output))
    return files.lock_file(output)


def _old(output: Path) -> Path:
    path = output.with_name(f".{output.name}.old")
    disk.remove(path)
    return path


def _give_away(path: Path) -> None:
    """Give a file or folder to another user, if this user may; an input of which it is a second name stays."""
    if os.geteuid() == 0:
        for each in [path, *path.rglob("*")]:
            if each.is_file() and not each.is_symlink() and each.stat().st_nlink > 1:
                content = each.read_bytes()
                each.unlink()
                each.write_bytes(content)
            os.chown(each, STRANGER, -1, follow_symlinks=False)
