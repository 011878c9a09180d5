"""The process behind `meters.Process`: `python -m saddles.probe.worker SOCKET`, started by it alone."""

import contextlib
import json
import socket
import sys

from saddles.probe.layout import Layout
from saddles.probe.meters import measured, receive_frame, receive_tensors, rows_to, send_frame
from saddles.probe.threads import calm_pool


def serve(channel: socket.socket) -> None:
    """Measure what comes until the other side ends."""
    head = json.loads(receive_frame(channel))
    layout = Layout.from_json(head["layout"])
    reference = receive_tensors(channel)
    with calm_pool(head["workers"]) as pool:
        while True:
            now = receive_tensors(channel)
            try:
                answer, kind = rows_to(measured(layout, now, reference, head["modules"], pool.map)), b"row"
            except Exception as error:
                answer, kind = f"{type(error).__name__}: {error}".encode(), b"error"
            send_frame(channel, kind)
            send_frame(channel, answer)


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError), socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line)
