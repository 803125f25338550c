"""The answer of a sweep as a person looks at it: figures, a page that works offline, what to try next."""
