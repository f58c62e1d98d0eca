//! Loads the shared datapath programs and attaches endpoints and devices to them.
