"""Each scenario draws a plan from a seed; `all` lists them."""
