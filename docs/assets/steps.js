// Steps one at a time, with Previous and Next; without a script the page shows them all, one below the other.
for (const steps of document.querySelectorAll(".steps")) {
  const all = [...steps.querySelectorAll(".step")]
  const bar = document.createElement("div")
  bar.className = "steps-bar"
  const [previous, place, next] = ["button", "span", "button"].map(kind => bar.appendChild(document.createElement(kind)))
  previous.textContent = "‹ Previous"
  next.textContent = "Next ›"
  place.setAttribute("aria-live", "polite")
  let shown = 0
  const show = number => {
    shown = Math.min(Math.max(number, 0), all.length - 1)
    all.forEach((step, index) => { step.hidden = index !== shown })
    place.textContent = `${shown + 1} of ${all.length}`
    previous.disabled = shown === 0
    next.disabled = shown === all.length - 1
  }
  previous.onclick = () => show(shown - 1)
  next.onclick = () => show(shown + 1)
  bar.onkeydown = event => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      show(shown + (event.key === "ArrowRight" ? 1 : -1))
      event.stopPropagation()
    }
  }
  steps.prepend(bar)
  show(0)
}
