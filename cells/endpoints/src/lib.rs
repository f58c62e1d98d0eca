//! The workloads on this node: their records, states, files and datapath.
