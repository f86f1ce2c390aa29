"""A clip that cannot be finished leaves nothing, and an earlier one as it was."""

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import numpy as np
import pytest

from sana_like_pipelines.media import clip_writer, read_clip, write_clip

NAMES = ["a.mp4", "a.webp", "a.gif", "folder"]


def noise(count, size=64):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (count, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", NAMES)
def test_interrupted_clip_leaves_the_earlier_one(tmp_path, name, error):
    if name != "folder":
        write_clip(noise(2), tmp_path / name, 8, {"prompt": "earlier"})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error), clip_writer(tmp_path / name, 8) as writer:
        writer.write(noise(1)[0])
        raise error
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@contextmanager
def small_files(limit):
    """No file may grow beyond `limit` bytes: what a full disk does, for one process."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.skipif(os.name == "nt", reason="limits of Unix")
@pytest.mark.parametrize("name", NAMES)
def test_full_disk(tmp_path, name):
    if name != "folder":
        write_clip(noise(2), tmp_path / name, 8)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with small_files(5_000), pytest.raises(OSError) as caught:
        write_clip(noise(30), tmp_path / name, 8, quality=100)
    assert caught.value.errno == errno.EFBIG
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_killed_process_leaves_no_clip_under_its_name(tmp_path):
    program = f"""
        import numpy as np
        from sana_like_pipelines.media import clip_writer

        with clip_writer({str(tmp_path / "a.mp4")!r}, 24) as writer:
            while True:
                writer.write(np.random.randint(0, 255, (64, 64, 3), dtype=np.uint8))
        """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size for path in tmp_path.iterdir()):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not (tmp_path / "a.mp4").exists()
    write_clip(noise(2), tmp_path / "a.mp4", 24)
    assert len(read_clip(tmp_path / "a.mp4").frames) == 2


def test_memory_does_not_grow_with_the_clip(tmp_path):
    frame = noise(1, 128)[0]
    peaks = []
    with clip_writer(tmp_path / "a.mp4", 24) as writer:
        for count in range(1001):
            writer.write(np.roll(frame, count, axis=1))
            if count in (200, 1000):
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    kilobytes = peaks[1] - peaks[0]
    assert kilobytes < 16 * 1024  # 800 frames are 38 MiB
