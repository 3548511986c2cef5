"""Programs: generators that yield asks and return outcomes, one set for every store and both colours."""
