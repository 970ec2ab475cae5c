"""Draw the picture of docs/bytes.md: the three paths of bytes between the server and a client.

The script writes docs/images/bytes.svg, and a test compares.
"""

from __future__ import annotations

from draw_hidden_state import HIDDEN, IMAGES, INK, LOCAL, MODEL, PALE, arrow, card, svg, text

PATHS = (
    ("1. Upload", "Q_c(start − trained)", "one per update", "counted at the server", LOCAL, True),
    ("2. Broadcast", "Q_s(x − x̂)", "one per K updates", "counted once", HIDDEN, False),
    ("3. Start", "what it lacks", "one per start", "chosen by catch_up", MODEL, False),
)
"""Name, content, frequency, a remark and colour of each path, and whether it leads up."""


def picture() -> str:
    """The server above, the paths in the middle, a client below."""
    parts = [
        card(12, 14, 456, 74, "Server", INK),
        text(24, 62, "x: the model · x̂: the hidden state of all clients", size=14),
        text(24, 80, "with linked starts, also the last start of each client", size=14, colour=PALE),
        card(12, 262, 456, 74, "Client", INK),
        text(24, 310, "starts from x̂ or close to it, trains, uploads the change", size=14),
        text(24, 328, "and applies the broadcasts that it receives", size=14, colour=PALE),
    ]
    for number, (name, content, often, remark, colour, is_upward) in enumerate(PATHS):
        left = 16.0 + 154 * number
        parts.append(arrow(left + 8, 258 if is_upward else 92, 92 if is_upward else 258, colour))
        parts.append(text(left + 22, 132, name, size=16, colour=colour, bold=True))
        parts += [
            text(left + 22, 158 + 22 * line, words, size=12, colour=look)
            for line, (words, look) in enumerate(((content, INK), (often, PALE), (remark, PALE)))
        ]
    words = "total bytes = uploaded + broadcast + received at starts"
    parts.append(text(240, 362, words, size=14, bold=True, anchor="middle"))
    label = "Three paths of bytes: uploads to the server, broadcasts to all clients, downloads at starts"
    return svg(parts, label, 380)


if __name__ == "__main__":
    (IMAGES / "bytes.svg").write_text(picture(), encoding="utf-8")
