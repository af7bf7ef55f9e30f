// Search of the site where it is opened from a disk: browsers start no Worker there, so that a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow // about:blank: of the same origin as this page
      const base = new URL(url, document.baseURI)
      const load = each => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: new URL(each, base), onload: done, onerror: failed })
        inside.document.head.append(script)
      })
      // What a worker calls, and a frame has not, or has with another meaning.
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      this.addEventListener("message", event => this.onmessage && this.onmessage(event))
      this.loaded = load(base).catch(() => this.dispatchEvent(new ErrorEvent("error", { filename: base.href })))
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
