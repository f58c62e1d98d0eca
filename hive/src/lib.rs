//! A lifecycle and dependency framework: cells, typed providers, start and stop hooks.
