//! A safe bpf(2) wrapper: typed maps, batches, pins, links and program test runs.
