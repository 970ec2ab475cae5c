"""Draw the pictures of docs/hidden-state.md: a server and two clients learn two numbers, and a broadcast carries one.

All numbers come from `Server` and `Client`. The script writes docs/images/hidden-state-*.svg, and a test compares.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np

from qafel import Client, HiddenState, Message, Server, Stream, Vector, method, quantizer

IMAGES = Path(__file__).parent.parent / "docs" / "images"
WIDTH, HEIGHT = 480, 470
INK, MODEL, HIDDEN, LOCAL, PALE = "#1f2937", "#3949ab", "#d9480f", "#2b8a3e", "#6b7280"
GOALS = np.array([[2.4, 1.0], [1.6, 1.8]], np.float32)
"""Where each client's own data would take the model; the mean, (2, 1.4), is best for all."""


@dataclass(frozen=True)
class Moment:
    """What everyone holds, and what crosses, at one step of the story."""

    model: Vector
    hidden: Vector
    clients: tuple[Vector, Vector]
    title: str
    trained: tuple[Vector, Vector] | None = None
    up: tuple[str, str] = ("", "")
    down: str = ""
    note: str = ""


def pair(vector: Vector) -> str:
    return f"({vector[0]:.1f}, {vector[1]:.1f})".replace("-", "−")


def story() -> list[Moment]:
    """Three rounds of QAFeL with K = 2, two of them step by step."""
    quantizers = {"client_quantizer": "none", "server_quantizer": "top_k:count=1"}
    algorithm = method("qafel", **quantizers, buffer_size=2, server_lr=1.0, local_steps=1)
    start = np.zeros(2, np.float32)
    server = Server(start, algorithm, seed=0)
    clients = [Client(number, HiddenState.of(start), algorithm, seed=0) for number in range(2)]
    moments: list[Moment] = []

    def tell(title: str, **more: object) -> None:
        held = (clients[0].hidden_state.vector, clients[1].hidden_state.vector)
        hidden = more.pop("hidden", server.hidden_state.vector)
        moments.append(Moment(server.model.copy(), hidden, held, title, **more))  # type: ignore[arg-type]

    tell("Everyone holds the same x̂", note="x̂ = x = (0.0, 0.0), everywhere")
    for turn in range(3):
        before = server.hidden_state.vector.copy()
        model = server.model.copy()
        made = [
            client.update(lambda start, *_, goal=goal: (start.vector + goal) / 2).upload
            for client, goal in zip(clients, GOALS, strict=True)
        ]
        updates = [np.frombuffer(Message.from_bytes(upload).payload, np.float32) for upload in made]
        trained = (before - updates[0], before - updates[1])
        moments.append(
            Moment(model, before, (before, before), "Clients train and upload", trained,
                   (f"x̂ − y = {pair(updates[0])}", f"x̂ − y = {pair(updates[1])}"))
        )  # fmt: skip
        batch = [server.receive(Message.from_bytes(upload)).batch for upload in made][-1]
        assert batch is not None
        broadcast = server.step(batch)
        difference, sent = server.model - before, server.hidden_state.vector - before
        tell("The buffer is full: the server steps", hidden=before, note=f"x − x̂ = {pair(difference)}")
        tell(
            "One number crosses, to everyone",
            hidden=before,
            note=f"x − x̂ = {pair(difference)}",
            down=f"q = {pair(sent)}",
        )
        for client in clients:
            client.receive(broadcast)
        left = server.model - server.hidden_state.vector
        tell("Everyone adds the same q", note=f"still missing: x − x̂ = {pair(left)}")
        assert all(np.array_equal(client.hidden_state.vector, server.hidden_state.vector) for client in clients)
        if turn == 0:
            assert np.allclose(left, [0, 0.7], atol=1e-6)
    assert np.allclose(server.hidden_state.vector, GOALS.mean(axis=0), atol=1e-6)
    return moments


def chosen(moments: list[Moment]) -> list[Moment]:
    """The first round in full; of the second what its broadcast repairs; and the end."""
    return [
        *moments[:5],
        replace(moments[7], title="Next round: what was missing is sent"),
        replace(moments[8], title="The error of the first message is gone"),
        replace(moments[12], title="One round more: x̂ is x", note="nothing is missing"),
    ]


def text(
    x: float, y: float, words: str, *, size: int = 15, colour: str = INK, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    look = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:g}" y="{y:g}" {look}>{escape(words)}</text>'


def card(x: float, y: float, width: float, height: float, name: str, colour: str) -> str:
    look = f'rx="10" fill="#f8fafc" stroke="{colour}" stroke-width="1.5"'
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}/>'
    return frame + text(x + 12, y + 22, name, bold=True, colour=colour)


def plane(x: float, y: float, width: float, height: float, marks: str) -> str:
    """The two numbers as a map: the first to the right, the second upwards, from −0.25 to 2.65 and to 2.05."""
    lines = [f'<path d="M{_right(x, width, value):.1f} {y}v{height}" stroke="#e2e8f0"/>' for value in (0, 1, 2)] + [
        f'<path d="M{x} {_up(y, height, value):.1f}h{width}" stroke="#e2e8f0"/>' for value in (0, 1, 2)
    ]
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="#fff" stroke="#cbd5e1"/>'
    return frame + "".join(lines) + marks


def _right(x: float, width: float, value: float) -> float:
    return x + (value + 0.25) / 2.9 * width


def _up(y: float, height: float, value: float) -> float:
    return y + height - (value + 0.25) / 2.4 * height


def mark(kind: str, box: tuple[float, float, float, float], point: Vector) -> str:
    x, y, width, height = box
    right, up = _right(x, width, float(point[0])), _up(y, height, float(point[1]))
    if kind == "x":
        return f'<circle cx="{right:.1f}" cy="{up:.1f}" r="5.5" fill="{MODEL}"/>'
    if kind == "y":
        return f'<path d="M{right - 5:.1f} {up + 4:.1f}l5 -9 5 9z" fill="{LOCAL}"/>'
    if kind == "x̂":
        return f'<path d="M{right:.1f} {up - 9:.1f}l9 9 -9 9 -9 -9z" fill="none" stroke="{HIDDEN}" stroke-width="2.5"/>'
    return text(right, up + 6, "☆", size=18, colour=PALE, anchor="middle")


def arrow(x: float, begin: float, end: float, colour: str) -> str:
    way = 1 if end > begin else -1
    return (
        f'<path d="M{x} {begin}V{end - 8 * way}" stroke="{colour}" stroke-width="3"/>'
        f'<path d="M{x - 7} {end - 9 * way}h14l-7 {9 * way}z" fill="{colour}"/>'
    )


def line_from(box: tuple[float, float, float, float], begin: Vector, end: Vector, colour: str) -> str:
    x, y, width, height = box
    points = [(_right(x, width, float(p[0])), _up(y, height, float(p[1]))) for p in (begin, end)]
    (a, b), (c, d) = points
    return f'<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" stroke="{colour}" stroke-width="2" stroke-dasharray="4 3"/>'


def draw(moment: Moment, number: int, count: int) -> str:
    """One step: the server above, what crosses in the middle, the clients below."""
    box = (290.0, 58.0, 166.0, 120.0)
    gap = line_from(box, moment.hidden, moment.model, PALE)
    parts = [
        text(16, 26, f"{number}. {moment.title}", size=18, bold=True),
        text(464, 26, f"{number}/{count}", size=14, colour=PALE, anchor="end"),
        card(12, 44, 456, 146, "Server", MODEL),
        text(24, 98, f"● x = {pair(moment.model)}", colour=MODEL),
        text(24, 124, f"◇ x̂ = {pair(moment.hidden)}", colour=HIDDEN),
        text(24, 158, moment.note, size=14, colour=PALE) if moment.note else "",
        plane(
            *box,
            mark("☆", box, GOALS.mean(axis=0)) + gap + mark("x", box, moment.model) + mark("x̂", box, moment.hidden),
        ),
    ]
    for place, name in enumerate("AB"):
        left = 12.0 + 234 * place
        held = moment.clients[place]
        inner = (left + 110, 322.0, 100.0, 88.0)
        marks = mark("x̂", inner, held)
        parts.append(card(left, 280, 222, 172, f"Client {name}", LOCAL))
        parts.append(text(left + 12, 436, f"◇ x̂ = {pair(held)}", size=14, colour=HIDDEN))
        if moment.trained is not None:
            trained = moment.trained[place]
            marks = line_from(inner, held, trained, LOCAL) + marks + mark("y", inner, trained)
            parts.append(text(left + 12, 340, "▲ y =", size=14, colour=LOCAL))
            parts.append(text(left + 12, 360, pair(trained), size=14, colour=LOCAL))
        parts.append(plane(*inner, marks))
        if moment.up[place]:
            parts += [arrow(left + 30, 278, 194, LOCAL), text(left + 44, 242, moment.up[place], size=14, colour=LOCAL)]
        if moment.down:
            parts.append(arrow(left + (110 if place else 100), 194, 276, HIDDEN))
    crossing = text(240, 240, moment.down, colour=HIDDEN, anchor="middle", bold=True)
    nothing = text(240, 240, "nothing crosses", size=14, colour=PALE, anchor="middle")
    parts.append(crossing if moment.down else "" if moment.up[0] else nothing)
    return svg(parts, f"Step {number}: {moment.title}. {moment.note or moment.down}")


def svg(parts: list[str], label: str, height: int = HEIGHT) -> str:
    style = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {style}>'
    back = f'<rect width="{WIDTH}" height="{height}" rx="12" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(label)}</title>", back, *filter(None, parts), "</svg>", ""])


def errors(steps: int = 60) -> dict[str, list[float]]:
    """How far clients' starts are from x, in three ways of sending a hundred numbers in two bits each."""
    send = quantizer("rotated:2")
    draw_from = Stream.named(0, "illustration").generator()
    goal = draw_from.normal(size=100).astype(np.float32)
    model, hidden, summed = (np.zeros(100, np.float32) for _ in range(3))
    found: dict[str, list[float]] = {"x itself": [], "x’s last step": [], "x − x̂": []}

    def sent(vector: Vector, step: int) -> Vector:
        return send.decode(send.encode(vector, Stream.named(0, "illustration", step)), vector.size)

    for step in range(steps):
        moved = model + 0.1 * (goal - model)
        hidden = hidden + sent(moved - hidden, step)
        summed = summed + sent(moved - model, step)
        model = moved.astype(np.float32)
        starts = (sent(model, step), summed, hidden)
        for name, start in zip(found, starts, strict=True):
            found[name].append(float(np.linalg.norm(model - start)))
    return found


def draw_errors() -> str:
    """The three ways as curves: distance from the model by server steps."""
    found = errors()
    top, bottom, left, right = 70, 330, 48, 360
    most = max(max(values) for values in found.values())
    parts = [
        text(16, 26, "Two bits a number, of what?", size=18, bold=True),
        text(16, 50, "distance between x and what clients start from", size=14, colour=PALE),
        f'<path d="M{left} {top}V{bottom}H{right}" stroke="{PALE}" fill="none"/>',
        text((left + right) / 2, bottom + 34, "server steps", size=14, colour=PALE, anchor="middle"),
    ]
    for step in (0, 20, 40, 60):
        parts.append(
            text(left + (right - left) * step / 60, bottom + 16, str(step), size=13, colour=PALE, anchor="middle")
        )
    for value in range(int(most) + 1):
        parts.append(
            text(left - 8, bottom - (bottom - top) * value / most + 4, str(value), size=13, colour=PALE, anchor="end")
        )
    for (name, values), colour in zip(found.items(), (PALE, MODEL, HIDDEN), strict=True):
        places = [
            f"{left + (right - left) * (step + 1) / 60:.1f} {bottom - (bottom - top) * value / most:.1f}"
            for step, value in enumerate(values)
        ]
        parts.append(f'<path d="M{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="3"/>')
        parts.append(
            text(right + 8, bottom - (bottom - top) * values[-1] / most + 5, name, size=14, colour=colour, bold=True)
        )
    label = "How far clients' starts are from x: sending x itself, or its last step, leaves an error; x − x̂ does not."
    return svg(parts, label, 385)


def pictures() -> dict[str, str]:
    """The files by their names."""
    moments = chosen(story())
    steps = {
        f"hidden-state-{number}.svg": draw(moment, number, len(moments)) for number, moment in enumerate(moments, 1)
    }
    return steps | {"hidden-state-errors.svg": draw_errors()}


if __name__ == "__main__":
    for name, content in pictures().items():
        (IMAGES / name).write_text(content, encoding="utf-8")
        print(name, file=sys.stderr)
