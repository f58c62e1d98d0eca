//! The compiled datapath programs as bytes.
