// From the disk (file://) browsers start no worker, so the search works in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      const inside = frame.contentWindow;
      const script = inside.document.createElement("script");
      this.ready = new Promise((resolve) => script.addEventListener("load", () => resolve(inside)));
      // What the worker posts is for us.
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      script.src = url;
      inside.document.head.append(script);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
