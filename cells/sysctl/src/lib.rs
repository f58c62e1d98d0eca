//! Kernel settings that other cells ask for, kept by a reconciler.
