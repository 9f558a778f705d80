"""The thin base of the iclr distributions: find a method, check its claims, keep an honest record, render it.

Nothing is imported here, so that `import iclr_shared.spec` costs milliseconds; import the modules you need:

- `spec`, `registry`: what a paper says about itself, and which papers are installed
- `claims`, `runner`, `records`, `report`: check claims, record what was measured, show it
- `seeds`, `progress`, `files`, `checkpoints`, `sweep`: what long, repeatable, resumable work needs
- `tables`, `plots`, `bench`, `llm`, `testing`: showing, timing, asking a language model, testing
"""
