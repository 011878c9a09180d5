"""The process behind `meters.Process`: `python -m saddles.probe.recording.worker SOCKET`, started by it alone."""

import contextlib
import json
import socket
import sys

from saddles.probe.layouts.layout import Layout
from saddles.probe.recording.backends import measured, receive_frame, rows_to, send_frame
from saddles.probe.recording.snapshot import Place, mapped
from saddles.probe.threads import calm_pool


def serve(channel: socket.socket) -> None:
    """Measure the copies that are named until the other side ends."""
    head = json.loads(receive_frame(channel))
    layout = Layout.from_json(head["layout"])
    places = [Place(**place) for place in head["places"]]
    blocks = {file: mapped(file, head["size"]) for file in head["files"]}
    tensors = {file: {place.name: place.of(block) for place in places} for file, block in blocks.items()}
    reference = tensors[head["files"][0]]
    with calm_pool(head["workers"]) as pool:
        while True:
            now = tensors[int(receive_frame(channel))]
            try:
                answer, kind = rows_to(measured(layout, now, reference, head["modules"], pool.map)), b"row"
            except Exception as error:
                answer, kind = f"{type(error).__name__}: {error}".encode(), b"error"
            send_frame(channel, kind)
            send_frame(channel, answer)


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError), socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)
