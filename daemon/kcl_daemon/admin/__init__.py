"""The status page, the probes and `/metrics` over HTTP.

`view` puts a snapshot into words and tables, which page, probes and the commands `status` and `top` share, `page` writes them as
HTML, `site` has the paths and who may ask, `server` is the HTTP. No failure here ever stops the worker, and no rendering
blocks the event loop for long. `/status.json` and `/capacity.json` are an API: fields are only added.
"""
