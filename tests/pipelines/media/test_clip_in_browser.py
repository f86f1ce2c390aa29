"""An MP4 that was written here plays in Chromium, to its end and in its colours."""

import json
import queue
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from sana_like_pipelines.media import exact_rate, write_clip

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

PAGE = b"""<!doctype html><body><video muted id=v src="clip.mp4"></video><script>
const v = document.getElementById("v"), facts = {colours: []};
const canvas = document.createElement("canvas").getContext("2d");
function tell() { fetch("facts", {method: "POST", body: JSON.stringify(facts)}); }
function colour() {
  canvas.drawImage(v, 0, 0);
  facts.colours.push(Array.from(canvas.getImageData(8, 8, 1, 1).data).slice(0, 3));
}
v.onerror = () => { facts.error = v.error.message; tell(); };
v.onloadeddata = () => {
  Object.assign(facts, {width: v.videoWidth, height: v.videoHeight, duration: v.duration});
  v.requestVideoFrameCallback(colour);
  v.playbackRate = Math.max(1, v.duration / 3);
  v.play();
};
v.onended = () => { colour(); facts.ended = v.currentTime; tell(); };
</script></body>"""


@pytest.fixture
def site():
    """A server on this machine: its address, its files by path, and what the page told."""
    files, told = {"/": PAGE}, queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = files.get(self.path)
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("Content-Type", "video/mp4" if "mp4" in self.path else "text/html")
            self.end_headers()
            self.wfile.write(content or b"")

        def do_POST(self):
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", files, told
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("rate", [8, "23.976", 24, 60])
@pytest.mark.parametrize(("count", "size"), [(1, (64, 96)), (5, (65, 97)), (300, (64, 96))])
def test_plays_to_its_end(tmp_path, site, rate, count, size):
    address, files, told = site
    clip = np.full((count, *size, 3), (200, 40, 90), np.uint8)
    clip[(count + 1) // 2 :] = (30, 160, 60)
    path = write_clip(clip, tmp_path / "a.mp4", rate, {"prompt": "two colours"})
    files["/clip.mp4"] = path.read_bytes()
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--mute-audio"),
        *("--autoplay-policy=no-user-gesture-required", f"--user-data-dir={tmp_path / 'profile'}"),
        address,
    ]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    browser = subprocess.Popen(command, **silent)
    try:
        facts = told.get(timeout=120)
    finally:
        browser.terminate()
        browser.wait()
    assert "error" not in facts
    even = tuple(side + side % 2 for side in size)
    assert (facts["height"], facts["width"]) == even
    seconds = float(count / exact_rate(rate))
    assert abs(facts["duration"] - seconds) < 0.002
    assert abs(facts["ended"] - seconds) < 0.1
    shown = np.array(facts["colours"])
    assert np.abs(shown[-1] - clip[-1, 8, 8].astype(int)).max() < 6
    if count == 300:  # of a short clip the browser may skip the first frame
        assert np.abs(shown[0] - clip[0, 8, 8].astype(int)).max() < 6
