// Search from file://, where a browser starts no worker: a hidden frame does its work.
// The theme's worker asks `"IFrameWorker" in parent`, and then finds its other scripts by the frame's own.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      document.body.append(this.frame)
      this.inside = this.frame.contentWindow
      this.inside.postMessage = message => setTimeout(() => this.hand(this, message))
      const script = this.inside.document.createElement("script")
      script.onload = () => {
        for (const message of this.waiting) this.hand(this.inside, message)
        this.waiting = null
      }
      script.src = new URL(url, location.href)
      this.inside.document.body.append(script)
    }

    hand(receiver, data) {
      const event = new MessageEvent("message", { data })
      receiver.dispatchEvent(event)
      if (receiver === this) this.onmessage?.(event)
    }

    postMessage(message) {
      if (this.waiting) this.waiting.push(message)
      else this.hand(this.inside, message)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
